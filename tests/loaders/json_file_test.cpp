#include "loaders/json_file.h"

#include <gtest/gtest.h>

#include "loaders/names.h"
#include "tests/loaders/expect_error.h"
#include "tests/support/test_data.h"

namespace duet::loaders {
namespace {

using test::fails_with;

TEST(JsonFile, KeepsTheOrderOfKeys) {
  const Json json = parse_json(R"({"zebra":1,"apple":{"b":1,"a":2},"mango":[]})", "x.json");
  EXPECT_EQ(JsonObject(json, "x.json").keys(), (std::vector<std::string>{"zebra", "apple", "mango"}));
  EXPECT_EQ(json.dump(), R"({"zebra":1,"apple":{"b":1,"a":2},"mango":[]})");
}

TEST(JsonFile, NamesFileAndByteOfASyntaxError) {
  EXPECT_TRUE(fails_with(Code::bad_file, {"x.json", "at byte 7"}, [] { parse_json(R"({"a": })", "x.json"); }));
  EXPECT_TRUE(fails_with(Code::bad_file, {"x.json", "at byte"}, [] { parse_json("", "x.json"); }));
  EXPECT_TRUE(fails_with(Code::bad_file, {"x.json"}, [] { parse_json("{} {}", "x.json"); }));
  EXPECT_TRUE(fails_with(Code::bad_file, {"x.json"}, [] { parse_json("{\"a\":\"\xC3\x28\"}", "x.json"); }));
  EXPECT_TRUE(fails_with(Code::bad_file, {"x.json"}, [] { parse_json(R"({"a":"\ud83d"})", "x.json"); }));
  EXPECT_TRUE(fails_with(Code::bad_file, {"x.json"}, [] { parse_json(R"({"a":NaN})", "x.json"); }));
  EXPECT_TRUE(fails_with(Code::bad_file, {"x.json"}, [] { parse_json(R"({"a":1e999})", "x.json"); }));
}

TEST(JsonFile, RefusesDoubledKeysAtEveryDepth) {
  EXPECT_TRUE(fails_with(Code::bad_file, {"x.json", "'a' twice"}, [] { parse_json(R"({"a":1,"a":1})", "x.json"); }));
  EXPECT_TRUE(
      fails_with(Code::bad_file, {"'b' twice"}, [] { parse_json(R"({"a":[{"b":1,"c":2,"b":3}]})", "x.json"); }));
  EXPECT_EQ(parse_json(R"({"a":{"b":1},"b":2})", "x.json").size(), 2U);  // Equal keys of two objects are fine.
}

TEST(JsonFile, RefusesDeepNestingWithItsPosition) {
  for (const std::string bracket : {"[", "{\"a\":"}) {
    std::string text;
    for (int i = 0; i < 100'000; ++i) text += bracket;
    EXPECT_TRUE(
        fails_with(Code::bad_file, {"x.json", "nested more than 64 deep"}, [&] { parse_json(text, "x.json"); }));
  }
  const std::string brackets(100'000, '[');
  EXPECT_EQ(parse_json("[\"\\\"" + brackets + "\"]", "x.json").size(), 1U);  // Inside a string they are text.
  EXPECT_NO_THROW(parse_json(std::string(64, '[') + std::string(64, ']'), "x.json"));
  EXPECT_TRUE(fails_with(Code::bad_file, {"at byte 64"},
                         [] { parse_json(std::string(65, '[') + std::string(65, ']'), "x.json"); }));
}

TEST(JsonFile, RefusesWhatIsTooLongBeforeReadingIt) {
  const test::TemporaryDirectory folder;
  test::write_file(folder.path() / "big.json", std::string(1001, ' '));
  EXPECT_TRUE(fails_with(Code::bad_file, {"big.json", "1001", "1000"},
                         [&] { read_json_file(folder.path() / "big.json", {.bytes = 1000}); }));
  EXPECT_TRUE(fails_with(Code::not_found, {"none.json"}, [&] { read_json_file(folder.path() / "none.json"); }));
}

TEST(JsonFile, ManyKeysCostLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i) text += "\"key" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  text.back() = '}';
  EXPECT_EQ(parse_json(text, "x.json").size(), 200'000U);  // Quadratic look-up would take minutes here.
}

TEST(JsonObject, TypedGettersNameFileAndKey) {
  const Json json = parse_json(
      R"({"n":3,"f":2.5,"s":"text","b":true,"none":null,"list":["a","b"],"mixed":["a",1],"o":{"n":"3"},"huge":18446744073709551615})",
      "c.json");
  const JsonObject object(json, "c.json");
  EXPECT_EQ(object.integer("n", 0, 10), 3);
  EXPECT_EQ(object.integer_or("none", 7, 0, 10), 7);
  EXPECT_EQ(object.number("n"), 3.0);
  EXPECT_EQ(object.number_or("f", 0), 2.5);
  EXPECT_TRUE(object.boolean_or("b", false));
  EXPECT_TRUE(object.boolean_or("absent", true));
  EXPECT_EQ(object.text("s"), "text");
  EXPECT_EQ(object.texts("list"), (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(object.has("none"));
  EXPECT_FALSE(object.object("none").has_value());
  EXPECT_TRUE(
      fails_with(Code::bad_file, {"'c.json': key 'n'", "3", "from 4 to 10"}, [&] { object.integer("n", 4, 10); }));
  EXPECT_TRUE(fails_with(Code::bad_file, {"key 'f'", "2.5"}, [&] { object.integer("f", 0, 10); }));
  EXPECT_TRUE(fails_with(Code::bad_file, {"key 'huge'"}, [&] { object.integer("huge", INT64_MIN, INT64_MAX); }));
  EXPECT_TRUE(fails_with(Code::bad_file, {"key 'b'", "a boolean"}, [&] { object.integer("b", 0, 10); }));
  EXPECT_TRUE(fails_with(Code::bad_file, {"key 'absent' is missing"}, [&] { object.text("absent"); }));
  EXPECT_TRUE(fails_with(Code::bad_file, {"key 'mixed'"}, [&] { object.texts("mixed"); }));
  EXPECT_TRUE(
      fails_with(Code::bad_file, {"key 'o.n'", "'3' (a string)"}, [&] { object.object("o")->integer("n", 0, 10); }));
  EXPECT_TRUE(fails_with(Code::bad_file, {"key 's'", "an object"}, [&] { object.object("s"); }));
}

TEST(Names, FindTheNearest) {
  const std::vector<std::string> names = {"self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj"};
  EXPECT_EQ(nearest_name("self_attn.q_porj", names), "self_attn.q_proj");
  EXPECT_EQ(nearest_name("mlp.down", names), "");  // More than half of it would have to change.
  EXPECT_EQ(nearest_name("mlp.down_pro", names), "mlp.down_proj");
  EXPECT_EQ(nearest_name("zzzz", names), "");
  EXPECT_EQ(nearest_name("", names), "");
}

TEST(Names, AreFitForOneLine) {
  EXPECT_EQ(quote(std::string_view("a\n\0b", 4)), "'a\\x0a\\x00b'");
  EXPECT_EQ(quote(std::string(200, 'x'), 3), "'xxx...'");
  EXPECT_EQ(listed({"a", "b"}), "'a' and 'b'");
  EXPECT_EQ(listed({"a", "b", "c"}, 2), "'a', 'b' and 1 more");
}

}  // namespace
}  // namespace duet::loaders
