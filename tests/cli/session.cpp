#include "tests/cli/session.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <stdexcept>

namespace duet::test {
namespace {

constexpr int kWaitMilliseconds = 120000;
constexpr char kCtrlC = '\x03', kCtrlD = '\x04';

struct Ends {
  int input, output;        // The test's.
  int child_in, child_out;  // The program's.
};

Ends open_terminal() {
  int ours = -1, theirs = -1;
  if (openpty(&ours, &theirs, nullptr, nullptr, nullptr) != 0) throw std::runtime_error("openpty failed");
  termios settings = {};
  tcgetattr(theirs, &settings);
  settings.c_lflag &= ~static_cast<tcflag_t>(ECHO);
  settings.c_oflag &= ~static_cast<tcflag_t>(OPOST);
  tcsetattr(theirs, TCSANOW, &settings);
  return {ours, ours, theirs, theirs};
}

Ends open_pipes() {
  int in[2] = {-1, -1}, out[2] = {-1, -1};
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) throw std::runtime_error("pipe failed");
  if (fcntl(out[1], F_SETPIPE_SZ, static_cast<int>(kPipeBytes)) < 0) throw std::runtime_error("F_SETPIPE_SZ failed");
  return {in[1], out[0], in[0], out[1]};
}

[[noreturn]] void become(const Ends& ends, Line line, const std::vector<char*>& argv,
                         const std::vector<std::string>& environment) {
  unsetenv("NO_COLOR");
  for (const std::string& variable : environment) putenv(const_cast<char*>(variable.c_str()));
  if (line == Line::terminal) {
    setsid();
    ioctl(ends.child_in, TIOCSCTTY, 0);  // So that Ctrl-C reaches it as a signal.
  }
  dup2(ends.child_in, STDIN_FILENO);
  dup2(ends.child_out, STDOUT_FILENO);
  dup2(ends.child_out, STDERR_FILENO);
  if (line == Line::terminal) {
    close(ends.input);
    close(ends.child_in);
  }
  execv(argv[0], argv.data());
  _exit(127);
}

}  // namespace

Session::Session(Line line, const std::vector<std::string>& arguments, const std::vector<std::string>& environment)
    : line_(line) {
  const Ends ends = line == Line::terminal ? open_terminal() : open_pipes();
  input_ = ends.input;
  output_ = ends.output;
  static const std::string kProgram = DUET_ENGINE_RUN;
  std::vector<char*> argv = {const_cast<char*>(kProgram.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) become(ends, line, argv, environment);
  close(ends.child_in);
  if (line == Line::pipe) close(ends.child_out);
  if (pid_ < 0) throw std::runtime_error("fork failed");
}

Session::~Session() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (input_ >= 0 && input_ != output_) close(input_);
  close(output_);
}

void Session::type(std::string_view keys) const {
  if (write(input_, keys.data(), keys.size()) != static_cast<ssize_t>(keys.size()))
    throw std::runtime_error("the program takes no more keys");
}

void Session::end_input() {
  if (line_ == Line::terminal) {
    type({&kCtrlD, 1});
  } else {
    close(input_);
    input_ = -1;
  }
}

void Session::interrupt() const {
  if (line_ == Line::terminal) {
    type({&kCtrlC, 1});
  } else {
    kill(pid_, SIGINT);
  }
}

bool Session::wait_for(std::string_view text) {
  for (;;) {
    const std::size_t at = shown_.find(text, seen_);
    if (at != std::string::npos) {
      seen_ = at + text.size();
      return true;
    }
    if (!read_more()) return false;
  }
}

bool Session::wait_for_bytes(std::size_t bytes) {
  while (shown_.size() < seen_ + bytes)
    if (!read_more()) return false;
  seen_ += bytes;
  return true;
}

std::size_t Session::unread() const {
  int bytes = 0;
  ioctl(output_, FIONREAD, &bytes);
  return static_cast<std::size_t>(bytes);
}

bool Session::ended() const {
  siginfo_t info = {};
  return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid_;
}

int Session::wait() {
  while (read_more()) {
  }
  int status = 0;
  if (waitpid(pid_, &status, 0) != pid_) throw std::runtime_error("waitpid failed");
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// A terminal whose program is gone reads as an error, a pipe as its end.
bool Session::read_more() {
  pollfd descriptor = {output_, POLLIN, 0};
  if (poll(&descriptor, 1, kWaitMilliseconds) <= 0) return false;
  char bytes[4096];
  const ssize_t count = read(output_, bytes, sizeof(bytes));
  if (count <= 0) return false;
  shown_.append(bytes, static_cast<std::size_t>(count));
  return true;
}

}  // namespace duet::test
