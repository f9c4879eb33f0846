#include "loaders/bnb4.h"

#include <gtest/gtest.h>

#include <map>

#include "duet/error.h"
#include "engine/quant_blocks.h"
#include "loaders/safetensors.h"
#include "tests/loaders/expect_error.h"
#include "tests/loaders/write_safetensors.h"
#include "tests/support/compare.h"
#include "tests/support/test_data.h"

namespace duet::loaders {
namespace {

using test::fails_with;
using test::same_bits;
using test::WrittenTensor;

constexpr std::string_view kWeight = "w.weight";

/// One 4-bit matrix as bitsandbytes writes it, every part open to changes before it is read.
class Bnb4 : public testing::Test {
 protected:
  /// [3, 50]: two whole blocks of 64 and one of 22, 75 bytes.
  Bnb4() {
    std::vector<float> codes(75);
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<float>(i * 37 % 256);
    put("", "U8", {75, 1}, codes);
    put(".absmax", "F32", {3}, {2.0F, 0.5F, 0.0F});
    put(".quant_map", "F32", {16}, {kNf4Codes.begin(), kNf4Codes.end()});
    put_state("nf4", R"({"quant_type":"nf4","blocksize":64,"dtype":"bfloat16","shape":[3,50]})");
  }

  void put(const std::string& suffix, const std::string& dtype, std::vector<std::int64_t> shape,
           std::vector<float> values) {
    const std::string name = std::string(kWeight) + suffix;
    parts_[name] = {name, dtype, std::move(shape), std::move(values)};
  }
  void put_state(const std::string& type, const std::string& json) {
    put(".quant_state.bitsandbytes__" + type, "U8", {static_cast<std::int64_t>(json.size())},
        {json.begin(), json.end()});
  }
  void drop(const std::string& suffix) { parts_.erase(std::string(kWeight) + suffix); }

  void make_nested() {
    std::vector<float> map(256, 0.25F);
    map[7] = 0.5F;
    put(".absmax", "U8", {3}, {7, 7, 0});
    put(".nested_absmax", "F32", {1}, {0.2F});
    put(".nested_quant_map", "F32", {256}, map);
    put_state("nf4", R"({"quant_type":"nf4","blocksize":64,"dtype":"float16","shape":[3,50],"nested_blocksize":256,)"
                     R"("nested_dtype":"float32","nested_offset":0.05})");
  }

  Bnb4Tensor open(std::int64_t rows = 3, std::int64_t columns = 50) {
    std::vector<WrittenTensor> tensors;
    for (const auto& [name, tensor] : parts_) tensors.push_back(tensor);
    test::write_file(folder_.path() / "model.safetensors", test::safetensors_file(tensors));
    set_.emplace(folder_.path());
    return open_bnb4([this](std::string_view name) { return set_->find(name); }, kWeight, rows, columns);
  }

  std::vector<float> decode() {
    const Bnb4Tensor tensor = open();
    region_.assign(layout_of(3, 50, tensor.spec()).bytes, std::byte{0xA5});
    read_bnb4(tensor, region_);
    std::vector<float> values(150);
    dequantise(view_of(3, 50, tensor.spec(), region_.data()), 0, values);
    return values;
  }

  testing::AssertionResult refused(std::initializer_list<std::string_view> parts, Code code = Code::bad_file) {
    return fails_with(code, parts, [&] { decode(); });
  }

  std::vector<float> by_hand(const std::array<float, 16>& table, const std::vector<float>& scales) const {
    std::vector<float> values;
    for (std::size_t i = 0; i < 150; ++i) {
      const auto both = static_cast<unsigned>(i / 2 * 37 % 256);
      values.push_back(table[i % 2 == 0 ? both / 16 : both % 16] * scales[i / 64]);
    }
    return values;
  }

  std::map<std::string, WrittenTensor> parts_;
  test::TemporaryDirectory folder_;
  std::optional<SafetensorsSet> set_;
  std::vector<std::byte> region_;
};

TEST_F(Bnb4, BlocksCrossRowEndsAndAZeroBlockIsZeros) {
  const std::vector<float> got = decode();
  EXPECT_TRUE(same_bits(got, by_hand(kNf4Codes, {2.0F, 0.5F, 0.0F})));
  for (std::size_t i = 128; i < 150; ++i) EXPECT_EQ(got[i], 0.0F);
}

TEST_F(Bnb4, Fp4IsReadWithItsOwnTable) {
  drop(".quant_state.bitsandbytes__nf4");
  put(".quant_map", "F32", {16}, {kFp4Codes.begin(), kFp4Codes.end()});
  put_state("fp4", R"({"quant_type":"fp4","blocksize":64,"dtype":"float32","shape":[3,50]})");
  EXPECT_TRUE(same_bits(decode(), by_hand(kFp4Codes, {2.0F, 0.5F, 0.0F})));
}

TEST_F(Bnb4, NestedScalesAddTheOffsetAsAFloat) {
  make_nested();
  const float scale = 0.5F * 0.2F + 0.05F;
  EXPECT_TRUE(same_bits(decode(), by_hand(kNf4Codes, {scale, scale, 0.25F * 0.2F + 0.05F})));
}

TEST_F(Bnb4, OtherStorageDtypesHoldTheSameBytes) {
  // [8, 16] in blocks of 32: 64 bytes, as 16 float32 numbers whose bit patterns are the codes.
  parts_.clear();
  std::vector<float> words(16);
  std::vector<std::uint8_t> bytes(64);
  for (std::size_t i = 0; i < 64; ++i) bytes[i] = static_cast<std::uint8_t>(i % 100);
  std::memcpy(words.data(), bytes.data(), 64);
  put("", "F32", {16, 1}, words);
  put(".absmax", "BF16", {4}, {1, 2, 4, 8});
  put(".quant_map", "F32", {16}, {kNf4Codes.begin(), kNf4Codes.end()});
  put_state("nf4", R"({"quant_type":"nf4","blocksize":32,"dtype":"float16","shape":[8,16]})");
  const Bnb4Tensor tensor = open(8, 16);
  std::vector<std::byte> region(layout_of(8, 16, tensor.spec()).bytes);
  read_bnb4(tensor, region);
  EXPECT_EQ(std::memcmp(region.data(), bytes.data(), 64), 0);
  EXPECT_EQ(scale_of(view_of(8, 16, tensor.spec(), region.data()), 3), 8.0F);
}

TEST_F(Bnb4, EveryLegalBlockSizeIsTakenFromTheFile) {
  for (const int block : {32, 64, 128, 4096}) {
    const std::int64_t blocks = (150 + block - 1) / block;
    put(".absmax", "F32", {blocks}, std::vector<float>(static_cast<std::size_t>(blocks), 1.0F));
    put_state("nf4",
              R"({"quant_type":"nf4","blocksize":)" + std::to_string(block) + R"(,"dtype":"float16","shape":[3,50]})");
    EXPECT_EQ(open().state.block_size, block);
  }
  put_state("nf4", R"({"quant_type":"nf4","blocksize":48,"dtype":"float16","shape":[3,50]})");
  EXPECT_TRUE(refused({"blocksize", "48"}, Code::unsupported));
}

TEST_F(Bnb4, ANameThatContradictsItsTextIsRefused) {
  put_state("nf4", R"({"quant_type":"fp4","blocksize":64,"dtype":"float16","shape":[3,50]})");
  EXPECT_TRUE(refused({"quant_type", "fp4", "nf4"}));
}

TEST_F(Bnb4, TwoStatesAreRefused) {
  put_state("fp4", R"({"quant_type":"fp4","blocksize":64,"dtype":"float16","shape":[3,50]})");
  EXPECT_TRUE(refused({"w.weight", "exactly one"}));
}

TEST_F(Bnb4, AnotherCodeTableIsRefused) {
  auto table = std::vector<float>(kNf4Codes.begin(), kNf4Codes.end());
  table[5] = -0.2F;
  put(".quant_map", "F32", {16}, table);
  EXPECT_TRUE(refused({"quant_map", "code 5", "nf4"}, Code::unsupported));
  put(".quant_map", "F32", {16}, {kFp4Codes.begin(), kFp4Codes.end()});
  EXPECT_TRUE(refused({"quant_map"}, Code::unsupported));
}

TEST_F(Bnb4, ShapesMustAgreeWithTheModel) {
  put_state("nf4", R"({"quant_type":"nf4","blocksize":64,"dtype":"float16","shape":[50,3]})");
  EXPECT_TRUE(refused({"[50, 3]", "transposed", "[3, 50]"}, Code::unsupported));
  put_state("nf4", R"({"quant_type":"nf4","blocksize":64,"dtype":"float16","shape":[5,30]})");
  EXPECT_TRUE(refused({"[5, 30]", "[3, 50]"}));
}

TEST_F(Bnb4, MissingPartsAreNamed) {
  for (const char* part : {".absmax", ".quant_map", ".quant_state.bitsandbytes__nf4"}) {
    const auto kept = parts_;
    drop(part);
    EXPECT_TRUE(refused({std::string(kWeight) + part}));
    parts_ = kept;
  }
  make_nested();
  for (const char* part : {".nested_absmax", ".nested_quant_map"}) {
    const auto kept = parts_;
    drop(part);
    EXPECT_TRUE(refused({std::string(kWeight) + part}));
    parts_ = kept;
  }
}

TEST_F(Bnb4, WrongLengthsAreRefused) {
  const auto kept = parts_;
  put("", "U8", {74, 1}, std::vector<float>(74));
  EXPECT_TRUE(refused({"74 bytes", "75"}));
  parts_ = kept;
  put(".absmax", "F32", {2}, {1, 1});
  EXPECT_TRUE(refused({"absmax", "2 scales", "3"}));
  parts_ = kept;
  put(".quant_map", "F32", {15}, std::vector<float>(15));
  EXPECT_TRUE(refused({"quant_map", "16 elements"}));
  parts_ = kept;
  make_nested();
  put(".nested_absmax", "F32", {2}, {1, 1});
  EXPECT_TRUE(refused({"nested_absmax", "1 elements"}));
}

TEST_F(Bnb4, CodesOfScalesWithoutTheirSecondLevelAreRefused) {
  put(".absmax", "U8", {3}, {1, 2, 3});
  EXPECT_TRUE(refused({"absmax", "double quantisation"}));
}

TEST_F(Bnb4, FloatScalesWhereCodesAreDueAreRefused) {
  make_nested();
  put(".absmax", "F32", {3}, {1, 1, 1});
  EXPECT_TRUE(refused({"absmax", "U8"}));
}

TEST_F(Bnb4, NonFiniteScalesAreRefused) {
  put(".absmax", "F32", {3}, {1, std::numeric_limits<float>::quiet_NaN(), 1});
  EXPECT_TRUE(refused({"absmax", "[1]"}, Code::non_finite));
  make_nested();
  put(".nested_absmax", "F32", {1}, {std::numeric_limits<float>::infinity()});
  EXPECT_TRUE(refused({"nested_absmax", "[0]"}, Code::non_finite));
}

TEST_F(Bnb4, StatesThatMakeNoSenseAreRefused) {
  const std::string good = R"("quant_type":"nf4","blocksize":64,"dtype":"float16","shape":[3,50])";
  for (const std::string& state :
       {std::string("["), std::string("[]"), std::string("{}"), "{" + good + R"(,"quant_type":"nf4"})",
        std::string(R"({"quant_type":"nf4","blocksize":"64","dtype":"float16","shape":[3,50]})"),
        std::string(R"({"quant_type":"nf4","blocksize":-64,"dtype":"float16","shape":[3,50]})"),
        std::string(R"({"quant_type":"nf4","blocksize":64,"dtype":"int8","shape":[3,50]})"),
        std::string(R"({"quant_type":"nf4","blocksize":64,"dtype":"float16","shape":[150]})"),
        std::string(R"({"quant_type":"nf4","blocksize":64,"dtype":"float16","shape":[-3,50]})"),
        std::string(R"({"quant_type":"nf4","blocksize":64,"dtype":"float16","shape":[3.0,50]})"),
        std::string(R"({"quant_type":"nf4","blocksize":64,"dtype":"float16","shape":[9223372036854775807,2]})"),
        std::string(R"({"quant_type":"nf4","blocksize":64,"dtype":"float16","shape":null})"),
        "{" + good + R"(,"nested_offset":1e300,"nested_blocksize":256,"nested_dtype":"float32"})",
        "{" + good + R"(,"nested_offset":"0.05","nested_blocksize":256,"nested_dtype":"float32"})",
        "{" + good + R"(,"nested_offset":0.05,"nested_blocksize":128,"nested_dtype":"float32"})",
        "{" + good + R"(,"nested_offset":0.05,"nested_blocksize":256,"nested_dtype":"float16"})"}) {
    put_state("nf4", state);
    EXPECT_TRUE(refused({"quant_state"})) << state;
  }
}

TEST_F(Bnb4, CompanionsSayThatATensorIsFourBit) {
  open();
  const TensorLookup find = [this](std::string_view name) { return set_->find(name); };
  EXPECT_TRUE(is_bnb4(find, kWeight));
  EXPECT_FALSE(is_bnb4(find, "v.weight"));
}

}  // namespace
}  // namespace duet::loaders
