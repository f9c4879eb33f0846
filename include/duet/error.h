#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "duet/export.h"

namespace duet {

/// What kind of failure it was; stable, also the C API's status codes and the programs' exit codes (docs/errors in
/// README).
enum class Code : int {
  ok = 0,
  invalid_argument = 1,  ///< A request, option or flag that makes no sense.
  not_found = 2,         ///< A file, folder, model or adapter that is not there.
  bad_file = 3,          ///< A file whose content contradicts its format or the model.
  unsupported = 4,       ///< Well-formed, but Duet does not do it; the text names the feature.
  no_room = 5,           ///< Does not fit the budget, the page pool or the context.
  non_finite = 6,        ///< NaN or infinity appeared in a model's numbers.
  cancelled = 7,
  deadline = 8,
  device = 9,    ///< The driver or the card failed.
  internal = 10  ///< Our own mistake.
};

/// "invalid_argument", "not_found", ...
DUET_API std::string_view name_of(Code code);

/// One sentence of what went wrong, where, what was expected; and one of what to do about it.
class DUET_API Error : public std::exception {
 public:
  /// `what` and `fix` carry no final full stop; `fix` may be empty.
  Error(Code code, std::string what, std::string_view fix = {});

  const char* what() const noexcept override { return text_.c_str(); }  ///< "<what>. <fix>."
  Code code() const noexcept { return code_; }

 private:
  Code code_;
  std::string text_;
};

}  // namespace duet
