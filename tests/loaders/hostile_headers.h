#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/loaders/expect_error.h"
#include "tests/loaders/write_safetensors.h"

/// O-24: files whose headers no loader may believe, the same for every door that leads to one.
namespace duet::test {

struct HostileHeader {
  std::string bytes;
  std::vector<std::string_view> parts;  ///< Of the message: the tensor where the fault is one tensor's, and the field.
};

inline std::vector<HostileHeader> hostile_headers() {
  const auto length = [](std::uint64_t value) {
    std::string bytes;
    append_raw(bytes, value);
    return bytes + "{}";
  };
  const auto offsets = [](const std::string& value) {
    return safetensors_bytes(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":)" + value + "}}", "12345678");
  };
  const auto shape = [](const std::string& value) {
    return safetensors_bytes(R"({"t":{"dtype":"F32","shape":)" + value + R"(,"data_offsets":[0,8]}})", "12345678");
  };
  const auto pair = [](const std::string& second, std::size_t bytes) {
    return safetensors_bytes(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                             R"("b":{"dtype":"U8","shape":[4],"data_offsets":)" +
                                 second + "}}",
                             std::string(bytes, 'x'));
  };
  const auto header = [](std::string_view text) { return safetensors_bytes(text, "xy"); };
  return {
      // The length.
      {length(~std::uint64_t{7}), {"header length 18446744073709551608"}},
      {length(1000), {"header length 1000", "past the end", "Download not complete?"}},
      {length(99'999'999), {"header length 99999999", "past the end"}},
      {length(100'000'001), {"header length 100000001"}},
      {length(0), {"header length 0"}},
      {"1234567", {"7 bytes"}},
      {"", {"0 bytes"}},
      // Offsets.
      {offsets("[8,0]"), {"tensor 't'", "data_offsets begins at 8 and ends at 0"}},
      {offsets("[-8,0]"), {"'t.data_offsets'", "-8"}},
      {offsets("[0,16]"), {"tensor 't'", "data_offsets ends at 16 of 8"}},
      {offsets("[0,18446744073709551615]"), {"'t.data_offsets'", "18446744073709551615"}},
      {offsets("[0,4]"), {"tensor 't'", "spans 4 bytes", "[2] of F32 needs 8"}},
      {offsets("[0]"), {"tensor 't'", "1 numbers, not 2"}},
      {offsets("[0,8,8]"), {"tensor 't'", "3 numbers, not 2"}},
      {offsets("[0.0,8]"), {"'t.data_offsets'"}},
      {offsets("{}"), {"'t.data_offsets'"}},
      // Shapes: elements that overflow, then bytes alone.
      {shape("[4294967296,4294967296]"), {"tensor 't'", "shape [4294967296, 4294967296]"}},
      {shape("[4611686018427387904]"), {"tensor 't'", "shape"}},
      {shape("[-2]"), {"'t.shape'", "-2"}},
      {shape("[\"2\"]"), {"'t.shape'"}},
      {shape("2"), {"'t.shape'"}},
      // Tensors that overlap, holes and rests.
      {pair("[2,6]", 8), {"tensor 'b'", "overlaps tensor 'a' by 2"}},
      {pair("[0,4]", 4), {"tensor 'b'", "overlaps tensor 'a' by 4"}},
      {pair("[5,9]", 9), {"tensor 'b'", "hole of 1"}},
      {pair("[4,8]", 11), {"3 of them after its last tensor"}},
      // Names and fields.
      {header(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
              R"("t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})"),
       {"'t' twice"}},
      {header(R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"strides":[1]}})"), {"tensor 't'", "'strides'"}},
      {header(R"({"t":{"shape":[2],"data_offsets":[0,2]}})"), {"'t.dtype' is missing"}},
      {header(R"({"t":[1]})"), {"'t'", "an object was expected"}},
      {header("[]"), {"an object was expected"}},
      {header(R"({"a\u001b[2J\n":{"dtype":"U8","shape":[1],"data_offsets":[0,2]}})"), {"\\x1b[2J\\x0a"}},
      // Metadata, and nesting.
      {header(R"({"__metadata__":{"format":1}})"), {"'__metadata__.format'", "a string"}},
      {header(R"({"__metadata__":[]})"), {"'__metadata__'"}},
      {header("{\"t\":" + std::string(100'000, '[')), {"nested more than 8 deep"}},
  };
}

/// `open` is given the bytes of each file in turn, refuses them by the file's name, and takes little memory.
template <typename Open>
void expect_hostile_headers_refused(std::string_view file, Open open) {
  rusage before{};
  getrusage(RUSAGE_SELF, &before);
  for (const HostileHeader& hostile : hostile_headers()) {
    std::vector<std::string_view> parts = hostile.parts;
    parts.push_back(file);
    EXPECT_TRUE(fails_with(Code::bad_file, parts, [&] { open(hostile.bytes); })) << hostile.bytes.substr(0, 200);
  }
  rusage after{};
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 50L * 1024);  // Kibibytes.
}

}  // namespace duet::test
