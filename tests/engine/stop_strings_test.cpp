#include "engine/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

namespace duet {
namespace {

struct Result {
  std::string text;
  bool stopped = false;
};

Result run(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopStrings matcher(stops);
  Result result;
  for (const std::string& piece : pieces) {
    result.stopped = matcher.push(piece, result.text);
    if (result.stopped) return result;
  }
  matcher.finish(result.text);
  return result;
}

/// The definition, byte by byte over the whole text.
Result by_definition(const std::vector<std::string>& stops, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& stop : stops)
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0)
        longest = std::max(longest, stop.size());
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

TEST(StopStrings, MatchesOverTokenBorders) {
  EXPECT_EQ(run({"\nUser:"}, {"Hello", "\nUser", ":", "x"}).text, "Hello");
  const Result second = run({"stop"}, {"go sto", "p!"});
  EXPECT_EQ(second.text, "go ");
  EXPECT_TRUE(second.stopped);
  EXPECT_EQ(run({"abcd"}, {"xa", "b", "c", "dy"}).text, "x");
}

TEST(StopStrings, NothingOfAStopIsReleasedEarly) {
  const std::vector<std::string> stops = {"stop"};
  StopStrings matcher(stops);
  std::string text;
  EXPECT_FALSE(matcher.push("go sto", text));
  EXPECT_EQ(text, "go ");
  EXPECT_FALSE(matcher.push("ck", text));
  EXPECT_EQ(text, "go stock");
  EXPECT_FALSE(matcher.push(" s", text));
  EXPECT_EQ(text, "go stock ");
  matcher.finish(text);
  EXPECT_EQ(text, "go stock s");
}

TEST(StopStrings, HarmlessTextIsReleasedInFull) {
  const Result result = run({"\nUser:"}, {"a\nUse", "d car"});
  EXPECT_FALSE(result.stopped);
  EXPECT_EQ(result.text, "a\nUsed car");
}

TEST(StopStrings, OneStopInsideAnother) {
  EXPECT_EQ(run({"User:", "\nUser:"}, {"Hi\nUser", ":"}).text, "Hi") << "complete at the same byte: the longest";
  EXPECT_EQ(run({"hello world", "lo wor"}, {"say hello world"}).text, "say hel") << "complete first";
  EXPECT_EQ(run({"aab", "ab"}, {"aaab"}).text, "a") << "a match may begin inside a failed one";
}

TEST(StopStrings, RejectsWhatCannotMatchSensibly) {
  EXPECT_EQ(check_stop_strings({"a", "\xC3\xA9", "\xF0\x9F\x98\x80"}), "");
  EXPECT_NE(check_stop_strings({"a", ""}).find("Stop string 1 is empty"), std::string::npos);
  for (const char* bad : {"\xA9", "\xC3", "\xC3(", "\xE0\x80\x80", "\xED\xA0\x80", "\xF5\x80\x80\x80", "\xF0\x9F\x98"})
    EXPECT_NE(check_stop_strings({bad}), "") << bad;
  EXPECT_EQ(check_stop_strings(std::vector<std::string>(20, "x")), "");
  EXPECT_NE(check_stop_strings(std::vector<std::string>(kMostStopStrings + 1, "x")), "");
}

TEST(StopStrings, EqualsItsDefinitionForRandomTextsHoweverTheyAreCut) {
  std::mt19937_64 random(32);
  for (int round = 0; round < 20000; ++round) {
    const auto word = [&](std::size_t longest) {
      std::string text(1 + random() % longest, ' ');
      for (char& letter : text) letter = static_cast<char>('a' + random() % 2);
      return text;
    };
    std::vector<std::string> stops(1 + random() % (round % 10 == 0 ? 20 : 3));
    for (std::string& stop : stops) stop = word(12);
    const std::string text = word(40);
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size();) {
      pieces.push_back(text.substr(at, 1 + random() % 6));
      at += pieces.back().size();
    }
    const Result want = by_definition(stops, text);
    const Result got = run(stops, pieces);
    ASSERT_EQ(got.stopped, want.stopped) << text;
    ASSERT_EQ(got.text, want.text) << text;
  }
}

}  // namespace
}  // namespace duet
