#pragma once

#include <string_view>

#include "duet/engine.h"

namespace duet::loaders {

/// Rules of the router from JSON text; `source` is for messages. Keys are the field names of RouteRules, absent ones
/// keep their defaults. Throws Error(bad_file) for a key that is none (naming the nearest), a value of the wrong kind
/// and rules that make no sense. `duet::read_route_rules` reads a file.
RouteRules parse_route_rules(std::string_view text, std::string_view source);

}  // namespace duet::loaders
