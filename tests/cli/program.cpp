#include "tests/cli/program.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <stdexcept>
#include <thread>

#include "tests/support/test_data.h"

namespace duet::test {
namespace {

namespace fs = std::filesystem;

struct Streams {
  std::string in = "/dev/null", out, err;
};

pid_t start(const std::vector<std::string>& arguments, const Streams& streams) {
  std::vector<char*> argv;
  static const std::string kProgram = DUET_ENGINE_RUN;
  argv.push_back(const_cast<char*>(kProgram.c_str()));
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error("fork failed");
  if (pid == 0) {
    const int in = open(streams.in.c_str(), O_RDONLY);
    const int out = open(streams.out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int err = open(streams.err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (in < 0 || out < 0 || err < 0) _exit(126);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  return pid;
}

int status_of(pid_t pid) {
  int status = 0;
  if (waitpid(pid, &status, 0) != pid) throw std::runtime_error("waitpid failed");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

Ended engine_run(const std::vector<std::string>& arguments, const std::string& input) {
  const TemporaryDirectory folder;
  const fs::path in = folder.path() / "in", out = folder.path() / "out", err = folder.path() / "err";
  write_file(in, input);
  Ended ended;
  ended.code = status_of(start(arguments, {in.string(), out.string(), err.string()}));
  ended.out = read_file(out);
  ended.err = read_file(err);
  return ended;
}

std::vector<std::string> with_model(const std::string& option, const std::string& checkpoint) {
  const std::string path = (golden_directory() / "models" / checkpoint).string();
  std::vector<std::string> arguments = {"--device", "host",        "--threads", "1", "--budget",
                                        "1GiB",     "--kv-tokens", "1024",      "-q"};
  if (option.starts_with("--")) return {option, path};
  arguments.insert(arguments.end(), {"--model", option + "=" + path});
  return arguments;
}

std::vector<std::string> operator+(std::vector<std::string> left, const std::vector<std::string>& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

Running::Running(const std::vector<std::string>& arguments) {
  std::string pattern = (fs::temp_directory_path() / "duet-run-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  out_ = fs::path(pattern) / "out";
  err_ = fs::path(pattern) / "err";
  pid_ = start(arguments, {"/dev/null", out_.string(), err_.string()});
}

Running::~Running() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    status_of(pid_);
  }
  std::error_code ignored;
  fs::remove_all(out_.parent_path(), ignored);
}

void Running::signal(int number) const { kill(pid_, number); }

bool Running::wait_for_output(std::size_t bytes) {
  for (int i = 0; i < 6000; ++i) {
    std::error_code error;
    if (fs::file_size(out_, error) >= bytes && !error) return true;
    siginfo_t info = {};
    if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid_)
      return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

Ended Running::wait() {
  Ended ended;
  ended.code = status_of(pid_);
  pid_ = -1;
  ended.out = read_file(out_);
  ended.err = read_file(err_);
  return ended;
}

}  // namespace duet::test
