#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "duet/engine.h"

/// Values of the command line. Each throws Error(invalid_argument) naming `option`.
namespace duet::run {

/// "name=value" split at the first '='. `name` is empty when there is none.
struct NamedValue {
  std::string name;
  std::string value;
};
NamedValue split_named(std::string_view text);

/// "6GiB", "512 MiB", "6GB", "6442450944": units of 1024 (KiB, MiB, GiB, TiB) or 1000 (kB, MB, GB, TB), a fraction
/// allowed.
std::uint64_t parse_bytes(std::string_view option, std::string_view text);

Device parse_device(std::string_view option, std::string_view text);
KvPolicy parse_kv_policy(std::string_view option, std::string_view text);
KvType parse_kv_type(std::string_view option, std::string_view text);
LengthPolicy parse_length_policy(std::string_view option, std::string_view text);
WeightType parse_weight_type(std::string_view option, std::string_view text);
LogitBias parse_logit_bias(std::string_view option, std::string_view text);  ///< "ID=BIAS"
int parse_int(std::string_view option, std::string_view text);
double parse_double(std::string_view option, std::string_view text);

}  // namespace duet::run
