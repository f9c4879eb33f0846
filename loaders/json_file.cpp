#include "loaders/json_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "duet/error.h"
#include "loaders/json_sax.h"
#include "loaders/mapped_file.h"
#include "loaders/names.h"

namespace duet::loaders {

namespace {

/// Builds the tree by appending, so that objects with many keys cost linear time.
class TreeBuilder final : public StrictSax {
 public:
  TreeBuilder(Json& root, std::string_view source) : StrictSax(source), root_(root) {}

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t& written) override {
    check_finite(value, written);
    return put(value);
  }
  bool string(string_t& value) override { return put(std::move(value)); }

  bool start_object(std::size_t size) override {
    open(Json::object());
    return StrictSax::start_object(size);
  }
  bool key(string_t& name) override {
    StrictSax::key(name);
    key_ = std::move(name);
    return true;
  }
  bool end_object() override {
    open_.pop_back();
    return StrictSax::end_object();
  }
  bool start_array(std::size_t) override {
    open(Json::array());
    return true;
  }
  bool end_array() override {
    open_.pop_back();
    return true;
  }

 private:
  template <typename Value>
  bool put(Value&& value) {
    append(Json(std::forward<Value>(value)));
    return true;
  }

  void open(Json container) { open_.push_back(append(std::move(container))); }

  Json* append(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      auto& elements = parent.get_ref<Json::array_t&>();
      elements.push_back(std::move(value));
      return &elements.back();
    }
    // The vector below ordered_map: its own emplace looks through all keys each time.
    Json::object_t::Container& members = parent.get_ref<Json::object_t&>();
    members.emplace_back(std::move(key_), std::move(value));
    return &members.back().second;
  }

  Json& root_;
  std::vector<Json*> open_;  // A child's address is stable while it is open: its parent grows only after it closes.
  std::string key_;
};

std::string_view kind_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::array:
      return "a list";
    case Json::value_t::object:
      return "an object";
    default:
      return "a number";
  }
}

}  // namespace

Json parse_json(std::string_view text, std::string_view source, const JsonLimits& limits) {
  Json root;
  TreeBuilder builder(root, source);
  parse_strictly(text, source, limits, builder);
  return root;
}

Json read_json_file(const std::filesystem::path& path, const JsonLimits& limits) {
  return parse_json(read_text_file(path, limits.bytes), path.string(), limits);
}

JsonObject::JsonObject(const Json& value, std::string source, std::string place)
    : value_(&value), source_(std::move(source)), place_(std::move(place)) {
  if (value.is_object()) return;
  const std::string subject =
      place_.empty() ? quote(source_) : fmt::format("{}: key {}", quote(source_), quote(place_));
  throw Error(Code::bad_file,
              fmt::format("{} is {} ({}); an object was expected", subject, shown(value), kind_of(value)));
}

std::string JsonObject::where(std::string_view key) const {
  const std::string path = place_.empty() ? std::string(key) : fmt::format("{}.{}", place_, key);
  return fmt::format("{}: key {}", quote(source_), quote(path));
}

const Json* JsonObject::find(std::string_view key) const {
  for (const auto& [name, value] : value_->get_ref<const Json::object_t&>()) {
    if (name == key) return value.is_null() ? nullptr : &value;
  }
  return nullptr;
}

std::vector<std::string> JsonObject::keys() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : value_->get_ref<const Json::object_t&>()) names.push_back(name);
  return names;
}

void JsonObject::refuse(std::string_view key, std::string_view expected) const {
  if (const Json* value = find(key)) {
    throw Error(Code::bad_file,
                fmt::format("{} is {} ({}); {} was expected", where(key), shown(*value), kind_of(*value), expected));
  }
  throw Error(Code::bad_file, fmt::format("{} is missing; {} was expected", where(key), expected));
}

const Json& JsonObject::need(std::string_view key, std::string_view expected) const {
  if (const Json* value = find(key)) return *value;
  refuse(key, expected);
}

std::int64_t JsonObject::integer(std::string_view key, std::int64_t smallest, std::int64_t largest) const {
  const std::string expected = fmt::format("a whole number from {} to {}", smallest, largest);
  const Json& value = need(key, expected);
  if (!value.is_number_integer()) refuse(key, expected);
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
    refuse(key, expected);
  }
  const auto number = value.get<std::int64_t>();
  if (number < smallest || number > largest) refuse(key, expected);
  return number;
}

std::int64_t JsonObject::integer_or(std::string_view key, std::int64_t fallback, std::int64_t smallest,
                                    std::int64_t largest) const {
  return has(key) ? integer(key, smallest, largest) : fallback;
}

double JsonObject::number(std::string_view key) const {
  const Json& value = need(key, "a number");
  if (!value.is_number()) refuse(key, "a number");
  return value.get<double>();
}

double JsonObject::number_or(std::string_view key, double fallback) const { return has(key) ? number(key) : fallback; }

bool JsonObject::boolean_or(std::string_view key, bool fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) refuse(key, "true or false");
  return value->get<bool>();
}

std::string JsonObject::text(std::string_view key) const {
  const Json& value = need(key, "a string");
  if (!value.is_string()) refuse(key, "a string");
  return value.get<std::string>();
}

std::string JsonObject::text_or(std::string_view key, std::string_view fallback) const {
  return has(key) ? text(key) : std::string(fallback);
}

std::vector<std::string> JsonObject::texts(std::string_view key) const {
  std::vector<std::string> texts;
  const Json* value = find(key);
  if (value == nullptr) return texts;
  if (!value->is_array()) refuse(key, "a list of strings");
  for (const Json& element : *value) {
    if (!element.is_string()) refuse(key, "a list of strings");
    texts.push_back(element.get<std::string>());
  }
  return texts;
}

std::optional<JsonObject> JsonObject::object(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  return JsonObject(*value, source_, place_.empty() ? std::string(key) : fmt::format("{}.{}", place_, key));
}

std::string shown(const Json& value, std::size_t limit) {
  // Containers are named, not printed: printing one that came from a file could be as long as the file.
  if (value.is_object()) return value.empty() ? "{}" : "{...}";
  if (value.is_array()) return value.empty() ? "[]" : "[...]";
  if (value.is_string()) return quote(value.get_ref<const std::string&>(), limit);
  return value.dump();
}

}  // namespace duet::loaders
