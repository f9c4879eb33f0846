#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

/// Runs engine_run as a person would, with every stream under the test's hand.
namespace duet::test {

struct Ended {
  int code = -1;  ///< Exit status; 128 + signal when a signal ended it.
  std::string out;
  std::string err;
};

/// engine_run with `arguments`; `input` is its standard input.
Ended engine_run(const std::vector<std::string>& arguments, const std::string& input = {});

/// Arguments that hold a golden checkpoint as a model, on the host, small and quiet.
std::vector<std::string> with_model(const std::string& option, const std::string& checkpoint);
std::vector<std::string> operator+(std::vector<std::string> left, const std::vector<std::string>& right);

/// A program that is still running.
class Running {
 public:
  explicit Running(const std::vector<std::string>& arguments);
  ~Running();  ///< Kills it.
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  void signal(int number) const;
  /// Waits until it has written `bytes` to standard output; false when it ended before or 60 seconds went by.
  bool wait_for_output(std::size_t bytes);
  Ended wait();

 private:
  std::filesystem::path out_, err_;
  pid_t pid_ = -1;
};

}  // namespace duet::test
