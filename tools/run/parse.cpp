#include "tools/run/parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "loaders/names.h"

namespace duet::run {
namespace {

[[noreturn]] void refuse(std::string_view option, std::string_view text, std::string_view expected) {
  throw Error(Code::invalid_argument, fmt::format("{} is {}", option, loaders::quote(text)),
              fmt::format("Give {}", expected));
}

template <class Number>
bool read_number(std::string_view text, Number& value) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  return problem == std::errc() && end == text.data() + text.size() && !text.empty();
}

template <class Value, std::size_t size>
Value look_up(std::string_view option, std::string_view text,
              const std::array<std::pair<std::string_view, Value>, size>& table) {
  std::vector<std::string> names;
  for (const auto& [name, value] : table) {
    if (name == text) return value;
    names.emplace_back(name);
  }
  const std::string last = names.back();
  names.pop_back();
  refuse(option, text, fmt::format("{} or {}", fmt::join(names, ", "), last));
}

}  // namespace

NamedValue split_named(std::string_view text) {
  const std::size_t at = text.find('=');
  if (at == std::string_view::npos) return {.name = {}, .value = std::string(text)};
  return {.name = std::string(text.substr(0, at)), .value = std::string(text.substr(at + 1))};
}

std::uint64_t parse_bytes(std::string_view option, std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, double>, 16> kUnits = {{{"", 1},
                                                                                  {"B", 1},
                                                                                  {"KiB", 0x1p10},
                                                                                  {"MiB", 0x1p20},
                                                                                  {"GiB", 0x1p30},
                                                                                  {"TiB", 0x1p40},
                                                                                  {"kB", 1e3},
                                                                                  {"KB", 1e3},
                                                                                  {"MB", 1e6},
                                                                                  {"GB", 1e9},
                                                                                  {"TB", 1e12},
                                                                                  {"K", 0x1p10},
                                                                                  {"M", 0x1p20},
                                                                                  {"G", 0x1p30},
                                                                                  {"T", 0x1p40},
                                                                                  {"k", 0x1p10}}};
  constexpr std::string_view kExpected = "a size such as 6GiB, 512MiB or 6442450944";
  constexpr double kLargest = 0x1p62;
  const std::size_t unit_at = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::size_t unit_begin = std::min(text.find_first_not_of(' ', unit_at), text.size());
  double number = 0;
  if (!read_number(text.substr(0, unit_at), number)) refuse(option, text, kExpected);
  for (const auto& [unit, factor] : kUnits) {
    if (unit != text.substr(unit_begin)) continue;
    if (number * factor < 1 || number * factor > kLargest) refuse(option, text, kExpected);
    return static_cast<std::uint64_t>(number * factor);
  }
  refuse(option, text, kExpected);
}

Device parse_device(std::string_view option, std::string_view text) {
  return look_up<Device, 3>(option, text,
                            {{{"auto", Device::automatic}, {"cuda", Device::cuda}, {"host", Device::host}}});
}

KvType parse_kv_type(std::string_view option, std::string_view text) {
  return look_up<KvType, 5>(option, text,
                            {{{"auto", KvType::automatic},
                              {"f32", KvType::f32},
                              {"f16", KvType::f16},
                              {"bf16", KvType::bf16},
                              {"int8", KvType::int8}}});
}

KvPolicy parse_kv_policy(std::string_view option, std::string_view text) {
  return look_up<KvPolicy, 2>(option, text, {{{"keep", KvPolicy::keep}, {"clear", KvPolicy::clear}}});
}

LengthPolicy parse_length_policy(std::string_view option, std::string_view text) {
  return look_up<LengthPolicy, 3>(
      option, text,
      {{{"reject", LengthPolicy::reject}, {"truncate", LengthPolicy::truncate}, {"segment", LengthPolicy::segment}}});
}

WeightType parse_weight_type(std::string_view option, std::string_view text) {
  return look_up<WeightType, 8>(option, text,
                                {{{"auto", WeightType::automatic},
                                  {"as-stored", WeightType::as_stored},
                                  {"f32", WeightType::f32},
                                  {"f16", WeightType::f16},
                                  {"bf16", WeightType::bf16},
                                  {"int8", WeightType::int8},
                                  {"nf4", WeightType::nf4},
                                  {"fp4", WeightType::fp4}}});
}

LogitBias parse_logit_bias(std::string_view option, std::string_view text) {
  const NamedValue parts = split_named(text);
  LogitBias entry;
  if (!read_number(parts.name, entry.id) || !read_number(parts.value, entry.bias))
    refuse(option, text, "a token's id and a number, as in 1234=-5");
  return entry;
}

int parse_int(std::string_view option, std::string_view text) {
  int value = 0;
  if (!read_number(text, value)) refuse(option, text, "a whole number");
  return value;
}

double parse_double(std::string_view option, std::string_view text) {
  double value = 0;
  if (!read_number(text, value)) refuse(option, text, "a number");
  return value;
}

}  // namespace duet::run
