#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace duet::run {

/// One value each time it is named, so that a prompt behind it stays the prompt.
inline CLI::Option* add_list(CLI::App& app, const std::string& name, std::vector<std::string>& values,
                             const std::string& description) {
  return app.add_option(name, values, description)->allow_extra_args(false);
}

}  // namespace duet::run
