#include "loaders/torch_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/loaders/expect_error.h"
#include "tests/loaders/write_torch_file.h"
#include "tests/support/compare.h"
#include "tests/support/test_data.h"

namespace duet::loaders {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;
using test::fails_with;
using test::pickle_of;
using test::pickled_integer;
using test::pickled_storage;
using test::pickled_tensor;
using test::pickled_text;
using test::torch_file_bytes;
using test::zip_bytes;
using Kind = TorchValue::Kind;

fs::path golden(std::string_view name) { return test::golden_directory() / "torch" / name; }

/// start, start + 1/8, ...: what torch_files.py fills its tensors with.
std::vector<float> ramp(std::size_t count, float start = 0) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = start + static_cast<float>(i) / 8;
  return values;
}

const TorchValue& at(const TorchValue& value, std::string_view key) {
  const TorchValue* found = value.find(key);
  if (found == nullptr) throw std::out_of_range(std::string(key));
  return *found;
}

const Tensor& tensor_at(const TorchValue& value, std::string_view key) { return std::get<Tensor>(at(value, key).data); }
const std::string& text_at(const TorchValue& value, std::string_view key) {
  return std::get<std::string>(at(value, key).data);
}

std::vector<std::string> keys_of(const TorchValue& value) {
  std::vector<std::string> keys;
  for (const TorchItem& item : std::get<TorchValue::Dict>(value.data)) keys.push_back(item.key);
  return keys;
}

testing::AssertionResult is_ramp(const Tensor& tensor, Dtype dtype, const std::vector<std::int64_t>& shape,
                                 float start = 0) {
  if (tensor.dtype != dtype || tensor.shape != shape) {
    return testing::AssertionFailure() << name_of(tensor.dtype) << " " << shape_text(tensor.shape);
  }
  return test::same_bits(to_floats(tensor), ramp(static_cast<std::size_t>(tensor.elements), start));
}

// ---- what torch writes ----

TEST(TorchFile, ReadsAHeadWithItsSettings) {
  const TorchValue file = read_torch_file(golden("kev_head.pt"));
  EXPECT_EQ(keys_of(file),
            (std::vector<std::string>{"head", "base", "base_revision", "lora", "head_dim", "option_isolation",
                                      "special_embeddings", "weights_dtype", "temperature", "holdout", "args"}));
  const TorchValue& head = at(file, "head");
  EXPECT_EQ(keys_of(head), (std::vector<std::string>{"q.weight", "q.bias", "k.weight", "k.bias"}));
  EXPECT_TRUE(is_ramp(tensor_at(head, "q.weight"), Dtype::f32, {8, 6}, -2));
  EXPECT_TRUE(is_ramp(tensor_at(head, "q.bias"), Dtype::f32, {8}, -1));
  EXPECT_TRUE(is_ramp(tensor_at(head, "k.weight"), Dtype::f32, {8, 6}, 0));
  EXPECT_TRUE(is_ramp(tensor_at(head, "k.bias"), Dtype::f32, {8}, 1));
  EXPECT_EQ(tensor_at(head, "k.bias").name, "head.k.bias");
  EXPECT_EQ(text_at(file, "base"), "Qwen/Qwen2.5-0.5B");
  EXPECT_EQ(at(file, "base_revision").kind(), Kind::none);
  EXPECT_EQ(std::get<std::int64_t>(at(file, "lora").data), 16);
  EXPECT_FALSE(std::get<bool>(at(file, "option_isolation").data));
  EXPECT_TRUE(std::get<bool>(at(file, "special_embeddings").data));
  EXPECT_EQ(std::get<double>(at(file, "temperature").data), 2.3510958125672174);
  const auto& holdout = std::get<TorchValue::List>(at(file, "holdout").data);
  ASSERT_EQ(holdout.size(), 2U);
  EXPECT_EQ(std::get<std::string>(holdout[1].data), "h\xC3\xA4ndisch");
  EXPECT_EQ(file.find("nothing"), nullptr);
  EXPECT_EQ(at(file, "base").find("base"), nullptr);
}

TEST(TorchFile, ReadsNestedPlainData) {
  const TorchValue file = read_torch_file(golden("kev_head.pt"));
  const TorchValue& args = at(file, "args");
  EXPECT_EQ(std::get<double>(at(args, "lr").data), 2e-4);
  EXPECT_EQ(std::get<std::int64_t>(at(args, "seed").data), (std::int64_t{1} << 40) + 7);
  EXPECT_EQ(std::get<std::int64_t>(at(at(args, "nested"), "warmup").data), -70000);
  const TorchValue& betas = at(at(args, "nested"), "betas");
  ASSERT_EQ(betas.kind(), Kind::list);
  EXPECT_EQ(std::get<double>(std::get<TorchValue::List>(betas.data)[1].data), 0.999);
  EXPECT_EQ(at(args, "empty").kind(), Kind::dict);
  EXPECT_EQ(at(args, "names").kind(), Kind::list);
  EXPECT_EQ(name_of(Kind::none), "none");
  EXPECT_EQ(name_of(Kind::tensor), "a tensor");
}

TEST(TorchFile, ReadsAStateDictWithoutItsMetadata) {
  const TorchValue file = read_torch_file(golden("state_dict.pt"));
  EXPECT_EQ(keys_of(file), (std::vector<std::string>{"0.weight", "0.bias", "1.weight", "1.bias"}));
  EXPECT_TRUE(is_ramp(tensor_at(file, "0.weight"), Dtype::f32, {3, 2}));
  EXPECT_TRUE(is_ramp(tensor_at(file, "1.bias"), Dtype::f32, {3}));
}

TEST(TorchFile, ReadsParametersAsTensors) {
  const TorchValue file = read_torch_file(golden("parameters.pt"));
  EXPECT_TRUE(is_ramp(tensor_at(file, "w"), Dtype::f32, {2, 2}));
  const auto& list = std::get<TorchValue::List>(at(file, "list").data);
  EXPECT_TRUE(is_ramp(std::get<Tensor>(list.at(0).data), Dtype::f32, {3}));
  EXPECT_EQ(std::get<Tensor>(list.at(0).data).name, "list.0");
}

TEST(TorchFile, ReadsEveryDtypeItKnows) {
  const TorchValue file = read_torch_file(golden("dtypes.pt"));
  EXPECT_TRUE(is_ramp(tensor_at(file, "f64"), Dtype::f64, {2, 3}));
  EXPECT_TRUE(is_ramp(tensor_at(file, "f32"), Dtype::f32, {5}));
  EXPECT_TRUE(is_ramp(tensor_at(file, "f16"), Dtype::f16, {3}));
  EXPECT_TRUE(is_ramp(tensor_at(file, "bf16"), Dtype::bf16, {7}));
  EXPECT_EQ(tensor_at(file, "scalar").shape.size(), 0U);
  EXPECT_EQ(to_floats(tensor_at(file, "scalar")), std::vector<float>{2.5F});
  EXPECT_EQ(tensor_at(file, "empty").shape, (std::vector<std::int64_t>{3, 0}));
  EXPECT_TRUE(to_floats(tensor_at(file, "empty")).empty());
  const Tensor& whole = tensor_at(file, "i64");
  EXPECT_EQ(whole.dtype, Dtype::i64);
  std::array<std::int64_t, 2> numbers{};
  read_bytes(whole, 0, std::as_writable_bytes(std::span(numbers)));
  EXPECT_EQ(numbers, (std::array<std::int64_t, 2>{-(std::int64_t{1} << 40), 3}));
  EXPECT_TRUE(fails_with(Code::unsupported, {"'i64'", "I64"}, [&] { to_floats(whole); }));
  EXPECT_TRUE(fails_with(Code::non_finite, {"'beyond'", "1e+300"}, [&] { to_floats(tensor_at(file, "beyond")); }));
}

TEST(TorchFile, ReadsViewsOfASharedStorage) {
  const TorchValue file = read_torch_file(golden("views.pt"));
  EXPECT_TRUE(is_ramp(tensor_at(file, "whole"), Dtype::f32, {6, 4}));
  EXPECT_TRUE(is_ramp(tensor_at(file, "rows"), Dtype::f32, {3, 4}, 1));
  EXPECT_TRUE(is_ramp(tensor_at(file, "row"), Dtype::f32, {4}, 2.5));
  EXPECT_TRUE(is_ramp(tensor_at(file, "one_column"), Dtype::f32, {1, 1}, 0.75));
  EXPECT_EQ(tensor_at(file, "rows").data().data(), tensor_at(file, "whole").data().data() + 32);
}

TEST(TorchFile, ReadsPlainDataOfProtocol4) {
  const TorchValue file = read_torch_file(golden("plain_4.pt"));
  EXPECT_EQ(text_at(file, "name"), std::string(300, 'x'));
  EXPECT_EQ(std::get<TorchValue::List>(at(file, "list").data).size(), 5U);
}

TEST(TorchFile, ReadsWhatOtherZipWritersMakeOfIt) {
  for (const std::string name : {"rewritten.pt", "zip64.pt", "no_byteorder.pt", "no_checksums.pt"}) {
    EXPECT_TRUE(is_ramp(tensor_at(read_torch_file(golden(name)), "w"), Dtype::f32, {4})) << name;
  }
}

TEST(TorchFile, OutlivesItsPath) {
  const test::TemporaryDirectory folder;
  const fs::path path = folder.path() / "head.pt";
  fs::copy_file(golden("kev_head.pt"), path);
  const TorchValue file = read_torch_file(path);
  fs::remove(path);
  EXPECT_TRUE(is_ramp(tensor_at(at(file, "head"), "q.bias"), Dtype::f32, {8}, -1));
}

// ---- what is refused, saved by torch itself ----

testing::AssertionResult refuses_golden(std::string_view name, Code code,
                                        std::initializer_list<std::string_view> parts) {
  const auto named = fails_with(code, {name}, [&] { read_torch_file(golden(name)); });
  return named ? fails_with(code, parts, [&] { read_torch_file(golden(name)); }) : named;
}

TEST(TorchFile, RefusesByNameWhatItDoesNotRead) {
  EXPECT_TRUE(refuses_golden("transposed.pt", Code::unsupported,
                             {"tensor [4, 3] of storage '0' with strides [1, 4]", "REDUCE at byte", "contiguous()"}));
  EXPECT_TRUE(refuses_golden("expanded.pt", Code::unsupported, {"tensor [3, 4]", "strides [0, 1]"}));
  EXPECT_TRUE(refuses_golden("int32.pt", Code::unsupported, {"GLOBAL at byte 64", "'torch.IntStorage'"}));
  EXPECT_TRUE(refuses_golden("number_keys.pt", Code::unsupported, {"a key that is an integer"}));
  EXPECT_TRUE(refuses_golden("huge_integer.pt", Code::unsupported, {"LONG1 at byte", "an integer of 9 bytes"}));
  EXPECT_TRUE(refuses_golden("tensors_4.pt", Code::unsupported, {"STACK_GLOBAL at byte", "protocol"}));
  EXPECT_TRUE(refuses_golden("before_1_6.pt", Code::unsupported, {"before PyTorch 1.6"}));
  EXPECT_TRUE(refuses_golden("compressed.pt", Code::unsupported,
                             {"zip entry 'archive/data.pkl' is compressed (deflate)", "torch.save"}));
  EXPECT_TRUE(refuses_golden("big_endian.pt", Code::unsupported, {"'archive/byteorder' says 'big'"}));
  EXPECT_TRUE(refuses_golden("twice.pt", Code::bad_file, {"zip entry 'archive/data/0' stands twice"}));
  EXPECT_TRUE(refuses_golden("outside.pt", Code::bad_file, {"storage '../x'", "BINPERSID at byte 112"}));
}

TEST(TorchFile, RunsNothing) {
  EXPECT_TRUE(refuses_golden("os_system.pt", Code::unsupported,
                             {"GLOBAL at byte 13 of data.pkl names 'posix.system'", "nothing in the file was run"}));
  EXPECT_TRUE(refuses_golden("eval.pt", Code::unsupported, {"GLOBAL at byte 13", "'__builtin__.eval'"}));
  EXPECT_TRUE(refuses_golden("import.pt", Code::unsupported, {"GLOBAL at byte 13", "'__builtin__.__import__'"}));
  EXPECT_TRUE(refuses_golden("object.pt", Code::unsupported, {"GLOBAL at byte 13", "'__main__.Thing'"}));
  EXPECT_TRUE(
      refuses_golden("attributes.pt", Code::unsupported, {"BUILD at byte 189", "attributes of an OrderedDict"}));
  EXPECT_TRUE(refuses_golden("build.pt", Code::unsupported, {"BUILD at byte 170", "attributes of a tensor"}));
  EXPECT_FALSE(fs::exists("duet_torch_file_ran"));
}

// ---- bent files ----

class BentTorchFile : public testing::Test {
 protected:
  fs::path path() const { return folder_.path() / "bent.pt"; }
  TorchValue open(std::string_view bytes) const {
    test::write_file(path(), bytes);
    return read_torch_file(path());
  }
  testing::AssertionResult refuses(std::string_view bytes, std::initializer_list<std::string_view> parts,
                                   Code code = Code::bad_file) const {
    const auto named = fails_with(code, {"bent.pt"}, [&] { open(bytes); });
    return named ? fails_with(code, parts, [&] { open(bytes); }) : named;
  }
  /// Whether the file that lies there gives no value. Anything but an Error of the two codes that files get is thrown
  /// on.
  bool refused() const {
    try {
      read_torch_file(path());
      return false;
    } catch (const Error& error) {
      if (error.code() != Code::bad_file && error.code() != Code::unsupported) throw;
      return true;
    }
  }
  test::TemporaryDirectory folder_;
};

using TorchZip = BentTorchFile;
using TorchPickle = BentTorchFile;
using TorchTensor = BentTorchFile;

void put(std::string& bytes, std::size_t at, std::uint64_t value, std::size_t count) {
  std::string number;
  test::append_number(number, value, count);
  bytes.replace(at, count, number);
}

/// Where the record of entry `index` begins in the directory of a file without zip64.
std::size_t central(const std::string& bytes, std::size_t index) {
  std::size_t at = bytes.find("PK\x01\x02");
  for (; index > 0; --index) at = bytes.find("PK\x01\x02", at + 1);
  return at;
}

const std::string kFour("\0\0\x80\x3F\0\0\0\x40\0\0\x40\x40\0\0\x80\x40", 16);  // 1, 2, 3, 4

/// One tensor [4] at the root.
std::string good_file(const test::ZipForm& form = {}) {
  return torch_file_bytes(pickle_of(pickled_tensor(pickled_storage("FloatStorage", "0", 4), 0, {4}, {1})),
                          {{"0", kFour}}, form);
}

TEST_F(BentTorchFile, EveryTruncationIsAnError) {
  for (const std::string name : {"kev_head.pt", "rewritten.pt"}) {
    test::write_file(path(), test::read_file(golden(name)));
    for (std::uintmax_t size = fs::file_size(path()); size-- > 0;) {
      fs::resize_file(path(), size);
      EXPECT_TRUE(refused()) << name << " " << size;
    }
  }
  EXPECT_TRUE(refuses(test::read_file(golden("rewritten.pt")) + "x", {"end record"}));
  EXPECT_TRUE(refuses("PK", {"2 bytes", "Download not complete?"}));
  EXPECT_TRUE(refuses("", {"does not begin as a zip archive"}));
}

TEST_F(BentTorchFile, EveryTruncatedPickleIsAnError) {
  const std::string good =
      pickle_of("}(" + pickled_text("w") + pickled_tensor(pickled_storage("FloatStorage", "0", 4), 0, {2, 2}, {2, 1}) +
                pickled_text("x") + "G12345678" + pickled_text("y") + "](K\x01M\x01\x02Neu");
  EXPECT_NO_THROW(open(torch_file_bytes(good, {{"0", kFour}})));
  for (std::size_t size = 0; size < good.size(); ++size) {
    test::write_file(path(), torch_file_bytes(good.substr(0, size), {{"0", kFour}}));
    EXPECT_TRUE(refused()) << size;
  }
}

TEST_F(BentTorchFile, NoChangedByteDoesMoreThanChangeAValue) {
  for (const std::string name : {"kev_head.pt", "zip64.pt", "no_checksums.pt"}) {
    const std::string whole = test::read_file(golden(name));
    test::write_file(path(), whole);
    std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
    for (std::size_t i = 0; i < whole.size(); ++i) {
      for (const int flip : {0x01, 0x81}) {
        file.seekp(static_cast<std::streamoff>(i)).put(static_cast<char>(whole[i] ^ flip)).flush();
        refused();  // Throws what is no Error of the two codes.
      }
      file.seekp(static_cast<std::streamoff>(i)).put(whole[i]).flush();
    }
    EXPECT_FALSE(refused()) << name;
  }
}

TEST_F(BentTorchFile, IsNoTorchFileAtAll) {
  EXPECT_TRUE(refuses("version https://git-lfs.github.com/spec/v1\n", {"Git LFS pointer", "git lfs pull"}));
  EXPECT_TRUE(refuses(zip_bytes({{"word/document.xml", "x"}}), {"without an entry '<prefix>/data.pkl'"}));
  EXPECT_TRUE(refuses(zip_bytes({{"data.pkl", "x"}}), {"without an entry"}));
  EXPECT_TRUE(refuses(zip_bytes({{"/data.pkl", "x"}, {"a/b/data.pkl", "x"}}), {"without an entry"}));
  EXPECT_TRUE(refuses(zip_bytes({{"a/data.pkl", "x"}, {"b/data.pkl", "x"}}), {"'a/data.pkl' and 'b/data.pkl'"}));
  EXPECT_TRUE(fails_with(Code::not_found, {"no.pt"}, [&] { read_torch_file(folder_.path() / "no.pt"); }));
  EXPECT_TRUE(fails_with(Code::bad_file, {"regular file"}, [&] { read_torch_file(folder_.path()); }));
}

TEST_F(BentTorchFile, IsTooLarge) {
  open(good_file());
  fs::resize_file(path(), (std::uint64_t{64} << 20) + 1);
  EXPECT_TRUE(fails_with(Code::unsupported, {"bent.pt", "67108865 bytes"}, [&] { read_torch_file(path()); }));
  EXPECT_TRUE(refuses(torch_file_bytes(std::string((std::size_t{4} << 20) + 1, 'N')), {"'x/data.pkl'", "4194305 bytes"},
                      Code::unsupported));
}

// ---- the archive ----

TEST_F(TorchZip, MayCarryZip64NumbersEverywhere) {
  for (const test::ZipForm form :
       {test::ZipForm{}, {.wide_entries = true}, {.wide_end = true}, {.wide_entries = true, .wide_end = true}}) {
    EXPECT_EQ(to_floats(std::get<Tensor>(open(good_file(form)).data)), (std::vector<float>{1, 2, 3, 4}));
  }
}

TEST_F(TorchZip, RefusesZip64NumbersThatContradict) {
  const std::string good = good_file({.wide_end = true});
  const std::size_t record = good.find("PK\x06\x06");
  const std::size_t locator = good.find("PK\x06\x07");
  const std::size_t end = good.find("PK\x05\x06");
  const auto with = [&](std::size_t at, std::uint64_t value, std::size_t count) {
    std::string bytes = good;
    put(bytes, at, value, count);
    return bytes;
  };
  EXPECT_TRUE(refuses(with(record + 4, 45, 8), {"zip64 end record"}));
  EXPECT_TRUE(refuses(with(record, 0, 4), {"zip64 end record"}));
  EXPECT_TRUE(refuses(with(locator + 8, ~std::uint64_t{0}, 8), {"zip64 end record"}));
  EXPECT_TRUE(refuses(with(locator + 16, 2, 4), {"contradict"}));
  EXPECT_TRUE(refuses(with(record + 24, 4, 8), {"contradict"}));
  EXPECT_TRUE(refuses(with(end + 16, 7, 4), {"contradict"}));
  EXPECT_TRUE(refuses(with(record + 48, ~std::uint64_t{0}, 8), {"18446744073709551615"}));
  EXPECT_TRUE(refuses(with(record + 40, ~std::uint64_t{0}, 8), {"18446744073709551615"}));
  EXPECT_TRUE(refuses(with(locator, 0, 4), {"4294967295"}));  // The record is gone that the full numbers point to.

  std::string bytes = good_file({.wide_entries = true});
  put(bytes, bytes.find("\x99\x99") + 4, 2, 2);  // No zip64 field.
  EXPECT_TRUE(refuses(bytes, {"'x/data.pkl'", "no zip64 field"}));
  bytes = good_file({.wide_entries = true});
  put(bytes, bytes.find("\x99\x99") + 6, 16, 2);  // A field that ends before its third number.
  EXPECT_TRUE(refuses(bytes, {"needs 8 bytes, and 0 are left"}));
  bytes = good_file({.wide_entries = true});
  put(bytes, bytes.find("\x99\x99") + 2, 0xFFFF, 2);
  EXPECT_TRUE(refuses(bytes, {"needs 65535 bytes"}));
}

TEST_F(TorchZip, RefusesEndRecordsThatMakeNoSense) {
  const std::string good = good_file();
  const std::size_t end = good.size() - 22;
  const auto with = [&](std::size_t at, std::uint64_t value, std::size_t count) {
    std::string bytes = good;
    put(bytes, at, value, count);
    return bytes;
  };
  EXPECT_TRUE(refuses(with(end + 16, 0xFFFFFFF0, 4), {"zip directory", "4294967280"}));
  EXPECT_TRUE(refuses(with(end + 16, 0, 4), {"zip directory"}));
  EXPECT_TRUE(refuses(with(end + 12, 0, 4), {"zip directory has 0 bytes"}));
  EXPECT_TRUE(refuses(with(end + 20, 1, 2), {"end record"}));
  EXPECT_TRUE(refuses(with(end + 8, 1, 2), {"in several"}, Code::unsupported));
  EXPECT_TRUE(refuses(with(end + 4, 1, 2), {"in several"}, Code::unsupported));
  EXPECT_TRUE(refuses(with(end + 8, 0x00020002, 4), {"bytes after its 2 entries"}));
  EXPECT_TRUE(refuses(with(end + 8, 0x00040004, 4), {"needs 46 bytes, and 0 are left"}));
  EXPECT_TRUE(refuses(with(end + 8, 0xFFFFFFFF, 4), {"65535 entries"}, Code::unsupported));
}

TEST_F(TorchZip, RefusesEntriesThatMakeNoSense) {
  const std::string good = good_file();
  const std::size_t storage = central(good, 2);
  const auto with = [&](std::size_t at, std::uint64_t value, std::size_t count) {
    std::string bytes = good;
    put(bytes, storage + at, value, count);
    return bytes;
  };
  EXPECT_TRUE(refuses(with(0, 0, 4), {"no entry"}));
  EXPECT_TRUE(refuses(with(8, 1, 2), {"'x/data/0' is encrypted"}, Code::unsupported));
  EXPECT_TRUE(refuses(with(10, 8, 2), {"'x/data/0' is compressed (deflate)"}, Code::unsupported));
  EXPECT_TRUE(refuses(with(10, 93, 2), {"'x/data/0' is compressed (method 93)"}, Code::unsupported));
  EXPECT_TRUE(refuses(with(16, 7, 4), {"'x/data/0' is damaged"}));
  EXPECT_TRUE(refuses(with(20, 15, 4), {"'x/data/0' is stored, and yet has 16 bytes in 15"}));
  EXPECT_TRUE(refuses(with(20, 0x0000000F0000000F, 8), {"15 bytes in the directory and 16 in its own header"}));
  EXPECT_TRUE(refuses(with(28, 60000, 2), {"needs 60046 bytes"}));
  EXPECT_TRUE(refuses(with(30, 60000, 2), {"needs 60054 bytes"}));
  EXPECT_TRUE(refuses(with(32, 60000, 2), {"needs 60054 bytes"}));
  EXPECT_TRUE(refuses(with(34, 1, 2), {"another part"}));
  EXPECT_TRUE(refuses(with(42, 0xFFFFFFF0, 4), {"'x/data/0' begins at 4294967280"}));
  EXPECT_TRUE(refuses(with(42, 1, 4), {"'x/data/0': at 1 there is no header of this name"}));
  EXPECT_TRUE(refuses(with(42, 0, 4), {"'x/data/0': at 0 there is no header of this name"}));
  EXPECT_TRUE(refuses(with(46, 'y', 1), {"'y/data/0'", "no header of this name"}));
}

TEST_F(TorchZip, RefusesContentOutsideOfTheEntries) {
  const auto with_size = [&](std::uint32_t size) {
    std::string bytes = good_file();
    put(bytes, central(bytes, 2) + 20, size, 4);
    put(bytes, central(bytes, 2) + 24, size, 4);
    const std::size_t header = bytes.rfind("PK\x03\x04");
    put(bytes, header + 18, size, 4);
    put(bytes, header + 22, size, 4);
    return bytes;
  };
  EXPECT_NO_THROW(open(with_size(16)));
  EXPECT_TRUE(refuses(with_size(17), {"'x/data/0' has 17 bytes at", "more than there are before the directory"}));
  EXPECT_TRUE(refuses(with_size(0xFFFFFFFE), {"'x/data/0' has 4294967294 bytes"}));
  std::string bytes = good_file();
  put(bytes, bytes.rfind("PK\x03\x04") + 28, 60000, 2);  // Extra field of the local header.
  EXPECT_TRUE(refuses(bytes, {"'x/data/0' has 16 bytes at 6"}));
}

TEST_F(TorchZip, RefusesOverlaps) {
  // Inside the content of x/data/0 lies the header of x/data/1, and the directory points there.
  const std::string inner = zip_bytes({{"x/data/1", "abcd"}});
  std::string bytes =
      zip_bytes({{"x/data.pkl", pickle_of("N")}, {"x/data/0", inner.substr(0, 42)}, {"x/data/1", "abcd"}});
  EXPECT_NO_THROW(open(bytes));
  put(bytes, central(bytes, 2) + 42, bytes.find("x/data/1") - 30, 4);
  EXPECT_TRUE(refuses(bytes, {"'x/data/1' begins inside entry 'x/data/0'"}));
}

TEST_F(TorchZip, RefusesDamage) {
  std::string bytes = test::read_file(golden("kev_head.pt"));
  const std::size_t value = bytes.find(std::string_view("\0\0\xC0\xBF", 4));  // -1.5
  ASSERT_NE(value, std::string::npos);
  bytes[value] = 1;
  EXPECT_TRUE(refuses(bytes, {"zip entry 'archive/data/0' is damaged: its CRC-32 is", "Download the file again"}));
}

TEST_F(TorchZip, RefusesManyEntries) {
  std::vector<test::ZipPart> parts = {{"x/data.pkl", pickle_of("N")}};
  for (int i = 1; i < 16'384; ++i) parts.push_back({"x/data/" + std::to_string(i), ""});
  EXPECT_NO_THROW(open(zip_bytes(parts)));
  parts.push_back({"x/data/0", ""});
  EXPECT_TRUE(refuses(zip_bytes(parts), {"16385 entries"}, Code::unsupported));
}

// ---- the pickle ----

TEST_F(TorchPickle, KnowsTheNamesOfWhatItRefuses) {
  const auto refuses_opcode = [&](std::string_view body, std::string_view name) {
    return refuses(torch_file_bytes(pickle_of(body)), {name, "at byte 2 of data.pkl", "nothing in the file was run"},
                   Code::unsupported);
  };
  EXPECT_TRUE(refuses_opcode("i", "INST"));
  EXPECT_TRUE(refuses_opcode("o", "OBJ"));
  EXPECT_TRUE(refuses_opcode("0", "POP"));
  EXPECT_TRUE(refuses_opcode("P", "PERSID"));
  EXPECT_TRUE(refuses_opcode("\x81", "NEWOBJ"));
  EXPECT_TRUE(refuses_opcode("\x82\x01", "EXT1"));
  EXPECT_TRUE(refuses_opcode("\x92", "NEWOBJ_EX"));
  EXPECT_TRUE(refuses_opcode("\x93", "STACK_GLOBAL"));
  EXPECT_TRUE(refuses_opcode("cbuiltins\neval\n", "GLOBAL"));
  EXPECT_TRUE(refuses_opcode("cbuiltins\neval\n", "'builtins.eval'"));
  EXPECT_TRUE(refuses_opcode("ctorch\n_utils._rebuild_tensor_v2\n", "'torch._utils._rebuild_tensor_v2'"));
  EXPECT_TRUE(refuses_opcode("ca\x1b[2J\nb\n", "'a\\x1b[2J.b'"));
  EXPECT_TRUE(refuses(torch_file_bytes(pickle_of("\xff")), {"byte 2 of data.pkl, 0xff, is no opcode"}));
}

TEST_F(TorchPickle, ReadsNothingButAllOfAProgram) {
  const auto refuses_pickle = [&](std::string_view pickle, std::initializer_list<std::string_view> parts,
                                  Code code = Code::bad_file) {
    return refuses(torch_file_bytes(pickle), parts, code);
  };
  EXPECT_TRUE(refuses_pickle("", {"PROTO at byte 0"}));
  EXPECT_TRUE(refuses_pickle("N.", {"PROTO at byte 0"}));
  EXPECT_TRUE(refuses_pickle("\x80\x05N.", {"PROTO at byte 0", "protocol 5"}, Code::unsupported));
  EXPECT_TRUE(refuses_pickle("\x80\x01N.", {"protocol 1"}, Code::unsupported));
  EXPECT_TRUE(refuses_pickle("\x80\x02\x80\x02N.", {"PROTO at byte 2", "in the middle"}));
  EXPECT_TRUE(refuses_pickle("\x80\x02N", {"NONE at byte 2", "without STOP"}));
  EXPECT_TRUE(refuses_pickle("\x80\x02.", {"STOP at byte 2", "the stack has none"}));
  EXPECT_TRUE(refuses_pickle("\x80\x02N..", {"STOP at byte 3", "1 bytes after"}));
  EXPECT_TRUE(refuses_pickle("\x80\x02NN.", {"STOP at byte 4", "leaves 1 values"}));
  EXPECT_TRUE(refuses_pickle("\x80\x02(N.", {"STOP at byte 4", "leaves 0 values"}));
  EXPECT_TRUE(refuses_pickle("\x80\x04\x95\xff\0\0\0\0\0\0\0N."s, {"FRAME at byte 2", "longer"}));
}

TEST_F(TorchPickle, ChecksTheStack) {
  const auto refuses_body = [&](std::string_view body, std::initializer_list<std::string_view> parts) {
    return refuses(torch_file_bytes(pickle_of(body)), parts);
  };
  EXPECT_TRUE(refuses_body("N\x86", {"TUPLE2 at byte 3", "needs 2 values"}));
  EXPECT_TRUE(refuses_body("N(\x85", {"TUPLE1 at byte 4", "needs 1 values"}));
  EXPECT_TRUE(refuses_body("Nt", {"TUPLE at byte 3", "needs a mark"}));
  EXPECT_TRUE(refuses_body("Na", {"APPEND at byte 3", "the stack has none"}));
  EXPECT_TRUE(refuses_body("NNa", {"APPEND at byte 4", "adds to None"}));
  EXPECT_TRUE(refuses_body(")(e", {"APPENDS at byte 4", "adds to a tuple"}));
  EXPECT_TRUE(refuses_body("](Nu", {"SETITEMS at byte 5", "sets a key of a list"}));
  EXPECT_TRUE(refuses_body("}(Nu", {"SETITEMS at byte 5", "a key without a value"}));
  EXPECT_TRUE(refuses_body("h\x01", {"BINGET at byte 2", "memo entry 1"}));
  EXPECT_TRUE(refuses_body("Nq\x05h\x04", {"BINGET at byte 5", "memo entry 4"}));
  EXPECT_TRUE(refuses_body("q\x01", {"BINPUT at byte 2", "the stack has none"}));
  EXPECT_TRUE(refuses_body("NR", {"REDUCE at byte 3"}));
  EXPECT_TRUE(refuses_body("N)R", {"REDUCE at byte 4", "calls None"}));
  EXPECT_TRUE(refuses_body("ccollections\nOrderedDict\n]R", {"REDUCE", "arguments in a list"}));
  EXPECT_TRUE(refuses_body("X\xff\xff\xff\xffx", {"BINUNICODE at byte 2", "needs 4294967295 bytes, and 2 are left"}));
  EXPECT_TRUE(refuses_body(pickled_text("\xC3("), {"BINUNICODE at byte 2", "not UTF-8"}));
  EXPECT_TRUE(refuses_body("c" + std::string(300, 'a') + "\nb\n", {"GLOBAL at byte 2", "longer than 256"}));
  EXPECT_TRUE(refuses_body("cabc", {"GLOBAL at byte 2"}));
}

TEST_F(TorchPickle, CallsNothingButWhatItKnows) {
  const auto refuses_body = [&](std::string_view body, std::initializer_list<std::string_view> parts, Code code) {
    return refuses(torch_file_bytes(pickle_of(body)), parts, code);
  };
  const std::string ordered = "ccollections\nOrderedDict\n";
  EXPECT_TRUE(refuses_body(ordered + "]\x85R", {"OrderedDict from arguments"}, Code::unsupported));
  EXPECT_TRUE(refuses_body("ctorch\nFloatStorage\n)R", {"calls 'torch.FloatStorage'"}, Code::unsupported));
  EXPECT_TRUE(refuses_body(ordered, {"byte 2 of data.pkl makes a name"}, Code::unsupported));
  EXPECT_TRUE(refuses_body("ctorch._utils\n_rebuild_parameter\nN\x85R", {"a parameter of"}, Code::bad_file));
  EXPECT_TRUE(refuses_body("ctorch._utils\n_rebuild_tensor_v2\n)R", {"a tensor of"}, Code::bad_file));
  EXPECT_TRUE(refuses_body("}}b", {"BUILD at byte 4", "attributes of a dict"}, Code::unsupported));
  EXPECT_TRUE(refuses_body(ordered + ")R}b", {"attributes of an OrderedDict"}, Code::unsupported));
  EXPECT_TRUE(refuses_body(ordered + ")R}" + pickled_text("_metadata") + "Nsb", {"BUILD"}, Code::unsupported));
  const std::string both = "}(" + pickled_text("_metadata") + "}" + pickled_text("__class__") + "Nu";
  EXPECT_TRUE(refuses_body(ordered + ")R" + both + "b", {"BUILD"}, Code::unsupported));
  EXPECT_NO_THROW(open(torch_file_bytes(pickle_of(ordered + ")R}" + pickled_text("_metadata") + "}sb"))));
}

TEST_F(TorchPickle, ReadsIntegersOfEveryWidth) {
  const auto integer = [&](std::string_view body) {
    return std::get<std::int64_t>(open(torch_file_bytes(pickle_of(body))).data);
  };
  EXPECT_EQ(integer("K\xff"), 255);
  EXPECT_EQ(integer("M\xfe\xff"), 65534);
  EXPECT_EQ(integer("J\xfe\xff\xff\xff"), -2);
  EXPECT_EQ(integer("\x8a\0"s), 0);
  EXPECT_EQ(integer("\x8a\x01\x80"), -128);
  EXPECT_EQ(integer("\x8a\x02\x80\0"s), 128);
  EXPECT_EQ(integer(pickled_integer(INT64_MIN)), INT64_MIN);
  EXPECT_EQ(integer(pickled_integer(INT64_MAX)), INT64_MAX);
}

TEST_F(TorchPickle, SharesValuesThroughTheMemo) {
  // d = {}; l = [d, d]; d filled afterwards: both places show it, as in Python.
  const TorchValue value = open(torch_file_bytes(pickle_of("](}q\x07h\x07" + pickled_text("a") + "K\x05se")));
  const auto& list = std::get<TorchValue::List>(value.data);
  ASSERT_EQ(list.size(), 2U);
  for (const TorchValue& dict : list) EXPECT_EQ(std::get<std::int64_t>(at(dict, "a").data), 5);
}

TEST_F(TorchPickle, BoundsWhatItBuilds) {
  rusage before{};
  getrusage(RUSAGE_SELF, &before);
  const auto refuses_body = [&](const std::string& body, std::initializer_list<std::string_view> parts, Code code) {
    return refuses(torch_file_bytes(pickle_of(body)), parts, code);
  };
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += ']';
  EXPECT_TRUE(refuses_body(deep + std::string(99'999, 'a'), {"nested more than 32 deep"}, Code::unsupported));
  EXPECT_TRUE(refuses_body("]q\x01h\x01" + "a"s, {"nested more than 32 deep"}, Code::unsupported));  // Holds itself.
  EXPECT_TRUE(
      refuses_body("](" + std::string(std::size_t{1} << 18, 'N') + "e", {"NONE", "262144 objects"}, Code::unsupported));
  EXPECT_TRUE(refuses_body("](" + std::string(std::size_t{1} << 16, 'N') + "e", {"65536 values"}, Code::unsupported));
  EXPECT_NO_THROW(open(torch_file_bytes(pickle_of("](" + std::string((std::size_t{1} << 16) - 1, 'N') + "e"))));
  // A list of two times the list before, 30 times over.
  std::string laughs = ")q\x01";
  for (int i = 0; i < 30; ++i) laughs += "h\x01\x86q\x01";
  EXPECT_TRUE(refuses_body(laughs, {"65536 values"}, Code::unsupported));
  // A text of a megabyte, twenty times.
  std::string texts = "](" + pickled_text(std::string(std::size_t{1} << 20, 'x')) + "q\x01";
  for (int i = 0; i < 20; ++i) texts += "h\x01";
  EXPECT_TRUE(refuses_body(texts + "e", {"16777216 bytes of text"}, Code::unsupported));
  EXPECT_TRUE(refuses_body("Nr\0\0\x04\0"s, {"LONG_BINPUT at byte 3", "memo entry 262144"}, Code::unsupported));
  EXPECT_TRUE(refuses_body("Nr\xff\xff\xff\xff", {"memo entry 4294967295"}, Code::unsupported));
  EXPECT_NO_THROW(open(torch_file_bytes(pickle_of("Nr\xff\xff\x03\0"s))));
  rusage after{};
  getrusage(RUSAGE_SELF, &after);
#ifndef __SANITIZE_ADDRESS__
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 200L * 1024);  // Kibibytes.
#endif
}

TEST_F(TorchPickle, RefusesDoubledKeys) {
  const std::string body = "}(" + pickled_text("a") + "N" + pickled_text("a") + "Nu";
  EXPECT_TRUE(refuses(torch_file_bytes(pickle_of(body)), {"byte 2 of data.pkl makes a dict", "key 'a' stands twice"}));
}

// ---- tensors ----

TEST_F(TorchTensor, LiesInsideItsStorage) {
  const auto file = [](std::int64_t offset, const std::vector<std::int64_t>& shape,
                       const std::vector<std::int64_t>& strides) {
    return torch_file_bytes(pickle_of(pickled_tensor(pickled_storage("FloatStorage", "0", 4), offset, shape, strides)),
                            {{"0", kFour}});
  };
  EXPECT_EQ(to_floats(std::get<Tensor>(open(file(1, {3}, {1})).data)), (std::vector<float>{2, 3, 4}));
  EXPECT_EQ(to_floats(std::get<Tensor>(open(file(3, {}, {})).data)), (std::vector<float>{4}));
  EXPECT_NO_THROW(open(file(0, {1, 4, 1}, {99, 1, 7})));  // Strides of single elements mean nothing.
  EXPECT_NO_THROW(open(file(4, {0, 5}, {9, 9})));
  EXPECT_TRUE(refuses(file(1, {4}, {1}), {"tensor [4] of storage '0' from element 1 on; the storage has 4"}));
  EXPECT_TRUE(refuses(file(5, {0}, {1}), {"from element 5"}));
  EXPECT_TRUE(refuses(file(-1, {4}, {1}), {"from element -1"}));
  EXPECT_TRUE(refuses(file(INT64_MAX, {4}, {1}), {"from element 9223372036854775807"}));
  EXPECT_TRUE(refuses(file(0, {2, 3}, {3, 1}), {"tensor [2, 3]", "the storage has 4"}));
  EXPECT_TRUE(refuses(file(0, {4}, {1, 1}), {"tensor [4] of storage '0' with 2 strides"}));
  EXPECT_TRUE(refuses(file(0, {-4}, {1}), {"a size that holds -4"}));
  EXPECT_TRUE(refuses(file(0, {4}, {-1}), {"a stride that holds -1"}));
  EXPECT_TRUE(refuses(file(0, {2, 2}, {1, 2}), {"strides [1, 2]", "contiguous"}, Code::unsupported));
  EXPECT_TRUE(refuses(file(0, {2}, {2}), {"strides [2]", "contiguous"}, Code::unsupported));
  EXPECT_TRUE(refuses(file(0, std::vector<std::int64_t>(17, 1), std::vector<std::int64_t>(17, 1)), {"17 dimensions"},
                      Code::unsupported));
}

TEST_F(TorchTensor, RefusesShapesThatOverflow) {
  const auto file = [](const std::vector<std::int64_t>& shape) {
    return torch_file_bytes(pickle_of(pickled_tensor(pickled_storage("FloatStorage", "0", 4), 0, shape,
                                                     std::vector<std::int64_t>(shape.size(), 1))),
                            {{"0", kFour}});
  };
  EXPECT_TRUE(refuses(file({INT64_MAX, INT64_MAX}), {"more bytes than 64 bits can count"}));
  EXPECT_TRUE(refuses(file({std::int64_t{1} << 32, std::int64_t{1} << 32}), {"[4294967296, 4294967296]"}));
  EXPECT_TRUE(refuses(file({std::int64_t{1} << 62}), {"more bytes"}));  // Elements fit, bytes do not.
  EXPECT_TRUE(refuses(file({std::int64_t{1} << 40}), {"the storage has 4"}));
}

TEST_F(TorchTensor, NeedsAStorageThatIsThere) {
  const auto file = [](const std::string& storage) {
    return torch_file_bytes(pickle_of(pickled_tensor(storage, 0, {4}, {1})), {{"0", kFour}, {"../x", kFour}});
  };
  EXPECT_NO_THROW(open(file(pickled_storage("FloatStorage", "0", 4))));
  EXPECT_TRUE(refuses(file(pickled_storage("FloatStorage", "1", 4)), {"storage '1'", "no entry 'data/1'"}));
  EXPECT_TRUE(refuses(file(pickled_storage("FloatStorage", "", 4)), {"storage ''"}));
  EXPECT_TRUE(refuses(file(pickled_storage("FloatStorage", "../x", 4)), {"storage '../x'", "decimal numbers"}));
  EXPECT_TRUE(refuses(file(pickled_storage("FloatStorage", "0", 5)), {"5 elements of F32", "16 bytes"}));
  EXPECT_TRUE(refuses(file(pickled_storage("FloatStorage", "0", 3)), {"3 elements of F32", "16 bytes"}));
  EXPECT_TRUE(refuses(file(pickled_storage("DoubleStorage", "0", 4)), {"4 elements of F64", "16 bytes"}));
  EXPECT_TRUE(refuses(file(pickled_storage("FloatStorage", "0", -4)), {"-4 elements"}));
  EXPECT_TRUE(refuses(file(pickled_storage("FloatStorage", "0", INT64_MAX)), {"9223372036854775807 elements"}));
  EXPECT_TRUE(refuses(file("NQ"), {"BINPERSID", "('storage', class, key, device, elements)"}));
  EXPECT_TRUE(refuses(file("(NNNNNtQ"), {"BINPERSID", "('storage', class, key, device, elements)"}));
  EXPECT_TRUE(refuses(torch_file_bytes(pickle_of(pickled_storage("FloatStorage", "0", 4)), {{"0", kFour}}),
                      {"makes a storage as a value"}, Code::unsupported));
}

TEST_F(TorchTensor, HasNoHooksOrAttributes) {
  const std::string storage = pickled_storage("FloatStorage", "0", 4);
  const auto file = [&](std::string_view tail) {
    const std::string body = "ctorch._utils\n_rebuild_tensor_v2\n(" + storage + pickled_integer(0) +
                             test::pickled_tuple({4}) + test::pickled_tuple({1}) + std::string(tail) + "tR";
    return torch_file_bytes(pickle_of(body), {{"0", kFour}});
  };
  EXPECT_NO_THROW(open(file("\x89}")));
  EXPECT_TRUE(refuses(file("\x89}" + pickled_text("x") + "Ns"), {"an empty dict of hooks"}));
  EXPECT_TRUE(refuses(file("\x89N"), {"an empty dict of hooks"}));
  EXPECT_TRUE(refuses(file("N}"), {"should make a tensor of"}));
  EXPECT_TRUE(refuses(file("\x89"), {"should make a tensor of"}));
  EXPECT_TRUE(refuses(file("\x89}}"), {"attributes of its own"}, Code::unsupported));
}

}  // namespace
}  // namespace duet::loaders
