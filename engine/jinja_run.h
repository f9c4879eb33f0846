#pragma once

#include <string>
#include <string_view>

#include "engine/jinja_parse.h"

namespace duet::jinja {

/// Renders a program. `globals` are its variables; `date` is what strftime_now gives, empty for today. Throws
/// Error(invalid_argument) for what the template itself raises or trips over, Error(unsupported) for a construct that
/// Duet does not know. Steps, nesting of calls and size are bounded whatever the template does.
Text run(const Program& program, const Dict& globals, std::string_view date);

}  // namespace duet::jinja
