#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "loaders/json_file.h"

namespace duet::loaders {

/// What every builder of a JSON tree refuses, and how it says so: syntax errors, infinite numbers, doubled keys.
/// A builder that overrides start_object, key or end_object calls these first.
class StrictSax : public nlohmann::json_sax<Json> {
 public:
  explicit StrictSax(std::string_view source) : source_(source) {}

  bool binary(binary_t&) override { return false; }  // JSON text has none.
  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return true;
  }
  bool key(string_t& name) override;
  bool end_object() override {
    keys_.pop_back();
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override;

 protected:
  void check_finite(double value, std::string_view written) const;

  std::string_view source_;

 private:
  std::vector<std::unordered_set<std::string>> keys_;
};

/// Feeds `text` to `builder`, which throws what it refuses. Throws Error(bad_file) for a text over the limits too.
void parse_strictly(std::string_view text, std::string_view source, const JsonLimits& limits, StrictSax& builder);

}  // namespace duet::loaders
