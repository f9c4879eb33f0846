#pragma once

#include <csignal>
#include <mutex>
#include <thread>

#include "duet/engine.h"

/// Ctrl-C and SIGTERM. The first cancels what is being answered, so that the program can write what it has and end;
/// the second ends it at once.
namespace duet::run {

constexpr int kExitAfterSecondInterrupt = 130;

class Interrupts {
 public:
  /// Must be made before any other thread: the signals are blocked in every thread that comes after.
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  /// Whose requests the first signal cancels; with none (while loading) it ends the program.
  void watch(Engine* engine);

  bool pending();  ///< A signal came since the start or the last `forget`.
  void forget();
  int descriptor() const { return pipe_[0]; }  ///< Readable while `pending`.

 private:
  void run();

  sigset_t signals_ = {};
  int pipe_[2] = {-1, -1};
  std::mutex mutex_;  // Guards what follows.
  Engine* engine_ = nullptr;
  int count_ = 0;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace duet::run
