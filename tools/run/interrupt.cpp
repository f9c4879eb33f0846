#include "tools/run/interrupt.h"

#include <fcntl.h>
#include <unistd.h>

#include "duet/error.h"

namespace duet::run {

Interrupts::Interrupts() {
  if (pipe2(pipe_, O_CLOEXEC | O_NONBLOCK) != 0)
    throw Error(Code::internal, "The system gave no pipe for Ctrl-C", "Close some files or programs");
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  thread_ = std::thread([this] { run(); });
}

Interrupts::~Interrupts() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  pthread_kill(thread_.native_handle(), SIGINT);
  thread_.join();
  close(pipe_[0]);
  close(pipe_[1]);
}

void Interrupts::watch(Engine* engine) {
  const std::lock_guard lock(mutex_);
  engine_ = engine;
}

bool Interrupts::pending() {
  const std::lock_guard lock(mutex_);
  return count_ > 0;
}

void Interrupts::forget() {
  const std::lock_guard lock(mutex_);
  count_ = 0;
  char byte = 0;
  while (read(pipe_[0], &byte, 1) == 1) {
  }
}

void Interrupts::run() {
  for (;;) {
    int signal = 0;
    if (sigwait(&signals_, &signal) != 0) continue;
    const std::lock_guard lock(mutex_);
    if (ending_) return;
    if (++count_ > 1) _exit(kExitAfterSecondInterrupt);
    if (engine_ == nullptr) _exit(static_cast<int>(Code::cancelled));
    const char byte = 1;
    (void)!write(pipe_[1], &byte, 1);
    engine_->cancel_all();
  }
}

}  // namespace duet::run
