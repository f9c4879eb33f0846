#include "loaders/json_value.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "loaders/json_sax.h"

namespace duet::loaders {
namespace {

class ValueBuilder final : public StrictSax {
 public:
  ValueBuilder(JsonValue& root, std::string_view source) : StrictSax(source), root_(root) {}

  bool null() override { return put({}); }
  bool boolean(bool value) override { return put({.kind = JsonValue::Kind::boolean, .boolean = value}); }
  bool number_integer(number_integer_t value) override { return integer(fmt::format("{}", value)); }
  bool number_unsigned(number_unsigned_t value) override { return integer(fmt::format("{}", value)); }
  bool number_float(number_float_t value, const string_t& written) override {
    if (written.find_first_of(".eE") == std::string::npos) return integer(written);  // Longer than 64 bits.
    check_finite(value, written);
    return put({.kind = JsonValue::Kind::real, .real = value});
  }
  bool string(string_t& value) override { return put(json_string(std::move(value))); }

  bool start_object(std::size_t size) override {
    return StrictSax::start_object(size) && open(JsonValue::Kind::object);
  }
  bool key(string_t& name) override {
    StrictSax::key(name);
    open_.back()->keys.push_back(std::move(name));
    return true;
  }
  bool end_object() override {
    open_.pop_back();
    return StrictSax::end_object();
  }
  bool start_array(std::size_t) override { return open(JsonValue::Kind::array); }
  bool end_array() override {
    open_.pop_back();
    return true;
  }

 private:
  bool integer(std::string digits) { return put({.kind = JsonValue::Kind::integer, .text = std::move(digits)}); }

  bool put(JsonValue value) {
    add(std::move(value));
    return true;
  }

  bool open(JsonValue::Kind kind) {
    open_.push_back(add({.kind = kind}));
    return true;
  }

  JsonValue* add(JsonValue value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    std::vector<JsonValue>& items = open_.back()->items;
    items.push_back(std::move(value));
    return &items.back();
  }

  JsonValue& root_;
  std::vector<JsonValue*>
      open_;  // A child's address is stable while it is open: its parent grows only after it closes.
};

}  // namespace

JsonValue parse_json_value(std::string_view text, std::string_view source, const JsonLimits& limits) {
  JsonValue root;
  ValueBuilder builder(root, source);
  parse_strictly(text, source, limits, builder);
  return root;
}

}  // namespace duet::loaders
