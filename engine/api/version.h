#pragma once

namespace duet::api {

/// "0.1.0": the project's version, as CMake knows it.
constexpr const char* kVersion = DUET_VERSION;

}  // namespace duet::api
