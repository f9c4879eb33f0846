#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

/// engine_run with somebody in front of it: keys go in, what it shows comes back, turn by turn.
namespace duet::test {

/// How the program is connected: standard output and standard error go to the one pipe, or the one screen. The terminal
/// does not echo keys and leaves line feeds alone.
enum class Line { pipe, terminal };

class Session {
 public:
  /// `environment` holds NAME=VALUE; NO_COLOR is unset unless it is among them.
  Session(Line line, const std::vector<std::string>& arguments, const std::vector<std::string>& environment = {});
  ~Session();  ///< Kills it.
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void type(std::string_view keys) const;
  void end_input();        ///< Ctrl-D, or the end of the pipe.
  void interrupt() const;  ///< Ctrl-C, or SIGINT.

  /// Reads until `text` is shown behind where the last wait ended. False when the program ended or 120 seconds went by.
  bool wait_for(std::string_view text);
  /// The same until `bytes` more are shown than when the last wait ended.
  bool wait_for_bytes(std::size_t bytes);
  /// Everything read so far.
  const std::string& shown() const { return shown_; }
  /// Bytes it has written that are not read yet.
  std::size_t unread() const;
  bool ended() const;
  /// Reads to the end. Exit status; 128 + signal when a signal ended it.
  int wait();

 private:
  bool read_more();

  Line line_;
  int input_ = -1, output_ = -1;  // Both are the terminal's, or one end of a pipe each.
  pid_t pid_ = -1;
  std::string shown_;
  std::size_t seen_ = 0;
};

/// What a pipe of a Session holds before its writer has to wait.
constexpr std::size_t kPipeBytes = 4096;

}  // namespace duet::test
