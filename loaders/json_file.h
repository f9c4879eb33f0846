#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// JSON from files nobody vouches for: bounded in size and depth, no doubled keys, order of keys kept.
namespace duet::loaders {

/// Keys keep the order of the file; look-up is linear, iteration free.
using Json = nlohmann::ordered_json;

struct JsonLimits {
  std::uint64_t bytes = std::uint64_t{64} << 20;
  int depth = 64;  ///< Of nested objects and arrays.
};

/// `source` is the file's name, for messages. Throws Error(bad_file) with the byte position for a syntax error, invalid
/// UTF-8 or too deep nesting, and with the key for a key that stands twice in one object.
Json parse_json(std::string_view text, std::string_view source, const JsonLimits& limits = {});

/// Also throws Error(not_found).
Json read_json_file(const std::filesystem::path& path, const JsonLimits& limits = {});

/// A JSON object together with where it stands, so that every complaint says so: "config.json: rope_scaling.factor is
/// "8" (a string); a number was expected". A key whose value is null counts as absent, as in the Python stack.
/// A view: the Json must outlive it.
class JsonObject {
 public:
  /// Throws Error(bad_file) when `value` is no object. `place` is the path of keys so far, empty for the root.
  JsonObject(const Json& value, std::string source, std::string place = {});

  const Json& json() const { return *value_; }
  const std::string& source() const { return source_; }
  /// "'config.json': key 'rope_scaling.factor'", for messages.
  std::string where(std::string_view key) const;

  bool has(std::string_view key) const { return find(key) != nullptr; }  ///< Present and not null.
  const Json* find(std::string_view key) const;                          ///< Null when absent or null.
  std::vector<std::string> keys() const;                                 ///< In file order, null ones included.

  // The first form of each throws Error(bad_file) when the key is absent; both do when the value is of another kind.
  std::int64_t integer(std::string_view key, std::int64_t smallest, std::int64_t largest) const;
  std::int64_t integer_or(std::string_view key, std::int64_t fallback, std::int64_t smallest,
                          std::int64_t largest) const;
  double number(std::string_view key) const;  ///< Finite.
  double number_or(std::string_view key, double fallback) const;
  bool boolean_or(std::string_view key, bool fallback) const;
  std::string text(std::string_view key) const;
  std::string text_or(std::string_view key, std::string_view fallback) const;
  std::vector<std::string> texts(std::string_view key) const;  ///< A list of strings; absent: empty.
  std::optional<JsonObject> object(std::string_view key) const;

  /// Error(bad_file): "<where> is <value>; <expected> was expected".
  [[noreturn]] void refuse(std::string_view key, std::string_view expected) const;

 private:
  const Json& need(std::string_view key, std::string_view expected) const;

  const Json* value_;
  std::string source_;
  std::string place_;
};

/// `value` on one line and at most `limit` bytes long, for messages.
std::string shown(const Json& value, std::size_t limit = 60);

}  // namespace duet::loaders
