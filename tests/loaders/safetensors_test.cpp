#include "loaders/safetensors.h"

#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "tests/loaders/expect_error.h"
#include "tests/loaders/hostile_headers.h"
#include "tests/loaders/write_safetensors.h"
#include "tests/support/compare.h"
#include "tests/support/test_data.h"

namespace duet::loaders {
namespace {

namespace fs = std::filesystem;
using test::fails_with;
using test::safetensors_bytes;
using test::safetensors_file;
using test::TemporaryDirectory;
using test::write_file;

std::vector<float> floats_of(const Tensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements));
  read_floats(tensor, 0, values);
  return values;
}

class OneFile : public testing::Test {
 protected:
  fs::path path() const { return folder_.path() / "model.safetensors"; }
  SafetensorsFile open(std::string_view bytes) const {
    write_file(path(), bytes);
    return SafetensorsFile(path());
  }
  TemporaryDirectory folder_;
};

using Safetensors = OneFile;
using SafetensorsHeader = OneFile;

// ---- what a good file says ----

TEST_F(Safetensors, ReadsEveryDtype) {
  std::string data;
  test::append_raw(data, -1.5);                             // F64
  test::append_raw(data, 0.1F);                             // F32
  test::append_raw(data, std::uint16_t{0x3C01});            // F16   1 + 2^-10
  test::append_raw(data, std::uint16_t{0xC049});            // BF16  -(1 + 73/128) * 2
  test::append_raw(data, std::int64_t{-9007199254740993});  // I64, rounded to float32
  test::append_raw(data, std::int32_t{-70000});             // I32
  test::append_raw(data, std::int16_t{-300});               // I16
  test::append_raw(data, std::int8_t{-7});                  // I8
  test::append_raw(data, std::uint8_t{250});                // U8
  test::append_raw(data, std::uint8_t{1});                  // BOOL
  const SafetensorsFile file = open(safetensors_bytes(
      R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1,1],"data_offsets":[8,12]},)"
      R"("c":{"dtype":"F16","shape":[1],"data_offsets":[12,14]},"d":{"dtype":"BF16","shape":[1],"data_offsets":[14,16]},)"
      R"("e":{"dtype":"I64","shape":[1],"data_offsets":[16,24]},"f":{"dtype":"I32","shape":[1],"data_offsets":[24,28]},)"
      R"("g":{"dtype":"I16","shape":[1],"data_offsets":[28,30]},"h":{"dtype":"I8","shape":[1],"data_offsets":[30,31]},)"
      R"("i":{"dtype":"U8","shape":[1],"data_offsets":[31,32]},"j":{"dtype":"BOOL","shape":[1],"data_offsets":[32,33]}})",
      data));
  ASSERT_EQ(file.tensors().size(), 10U);
  std::vector<float> values;
  for (const Tensor& tensor : file.tensors()) values.push_back(floats_of(tensor)[0]);
  const std::vector<float> want = {-1.5F,     0.1F,    1.0009765625F, -3.140625F, -9007199254740992.0F,
                                   -70000.0F, -300.0F, -7.0F,         250.0F,     1.0F};
  EXPECT_TRUE(test::same_bits(values, want));
  EXPECT_EQ(file.find("b")->shape, (std::vector<std::int64_t>{1, 1}));
  EXPECT_EQ(name_of(file.find("d")->dtype), "BF16");
  EXPECT_EQ(file.find("k"), nullptr);
}

TEST_F(Safetensors, ReadsPartsOfATensorAcrossItsOwnChunks) {
  test::WrittenTensor big{"big", "BF16", {300, 101}, {}};
  for (int i = 0; i < 300 * 101; ++i) big.values.push_back(static_cast<float>(i % 251) - 125.0F);
  const SafetensorsFile file = open(safetensors_file({{"first", "F32", {1}, {1}}, big}));
  const Tensor& tensor = *file.find("big");
  EXPECT_TRUE(test::same_bits(floats_of(tensor), big.values));
  std::vector<float> part(20'000);
  read_floats(tensor, 10'001, part);
  EXPECT_TRUE(test::same_bits(part, std::span(big.values).subspan(10'001, 20'000)));
  EXPECT_EQ(tensor.data().size(), 300U * 101U * 2U);
  EXPECT_TRUE(fails_with(Code::internal, {"big"}, [&] { read_floats(tensor, 10'302, part); }));
}

TEST_F(Safetensors, KeepsInfinityAndNanButNeverMakesOne) {
  std::string data;
  for (const double value :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN(), 1e300}) {
    test::append_raw(data, value);
  }
  const SafetensorsFile file = open(safetensors_bytes(
      R"({"a":{"dtype":"F64","shape":[2],"data_offsets":[0,16]},"b":{"dtype":"F64","shape":[1],"data_offsets":[16,24]}})",
      data));
  const std::vector<float> values = floats_of(*file.find("a"));
  EXPECT_TRUE(std::isinf(values[0]));
  EXPECT_TRUE(std::isnan(values[1]));
  EXPECT_TRUE(fails_with(Code::non_finite, {"'b'", "1e+300"}, [&] { floats_of(*file.find("b")); }));
}

TEST_F(Safetensors, ReadsMetadata) {
  const SafetensorsFile file = open(safetensors_bytes(R"({"__metadata__":{"format":"pt"}}  )", ""));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_TRUE(file.tensors().empty());
}

TEST_F(Safetensors, NoticesAFileThatShrinksOrChanges) {
  const SafetensorsFile file = open(safetensors_file({{"a", "F32", {4}, {1, 2, 3, 4}}}));
  EXPECT_NO_THROW(file.file()->check_unchanged());
  fs::resize_file(path(), file.file()->size() - 4);
  EXPECT_TRUE(fails_with(Code::bad_file, {"model.safetensors", "ends at"}, [&] { floats_of(*file.find("a")); }));
  EXPECT_TRUE(fails_with(Code::bad_file, {"was changed"}, [&] { file.file()->check_unchanged(); }));
}

TEST_F(Safetensors, RefusesFoldersFifosAndOtherDtypes) {
  EXPECT_TRUE(fails_with(Code::bad_file, {"regular file"}, [&] { SafetensorsFile(folder_.path()); }));
  EXPECT_TRUE(
      fails_with(Code::not_found, {"no.safetensors"}, [&] { SafetensorsFile(folder_.path() / "no.safetensors"); }));
  EXPECT_TRUE(fails_with(Code::unsupported, {"'a'", "F8_E4M3"}, [&] {
    open(safetensors_bytes(R"({"a":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}})", "x"));
  }));
}

// ---- O-24 ----

TEST_F(SafetensorsHeader, RefusesWhatIsHostileByTensorAndFieldInLittleMemory) {
  test::expect_hostile_headers_refused("model.safetensors", [&](std::string_view bytes) { open(bytes); });
}

TEST_F(SafetensorsHeader, AcceptsEmptyTensorsAndScalars) {
  const SafetensorsFile file = open(safetensors_bytes(
      R"({"empty":{"dtype":"F32","shape":[3,0],"data_offsets":[0,0]},"scalar":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})",
      std::string("\0\0\x80\x3F", 4)));
  EXPECT_EQ(file.find("empty")->elements, 0);
  EXPECT_EQ(file.find("scalar")->elements, 1);
  EXPECT_EQ(floats_of(*file.find("scalar"))[0], 1.0F);
}

// ---- O-25 and O-26: sets of files ----

class Shards : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(model());
    write_file(model() / "one.safetensors", safetensors_file({{"a", "F32", {2}, {1, 2}}}));
    write_file(model() / "two.safetensors", safetensors_file({{"b", "F32", {1}, {3}}, {"c", "F32", {1}, {4}}}));
    write_index(R"({"a":"one.safetensors","b":"two.safetensors","c":"two.safetensors"})");
  }
  fs::path model() const { return folder_.path() / "model"; }
  void write_index(std::string_view map) const {
    write_file(model() / "model.safetensors.index.json",
               R"({"metadata":{"total_size":16},"weight_map":)" + std::string(map) + "}");
  }
  testing::AssertionResult refuses(Code code, std::initializer_list<std::string_view> parts) const {
    return fails_with(code, parts, [&] { SafetensorsSet{model()}; });
  }
  TemporaryDirectory folder_;
};

/// Sees whether files are opened, by whomever.
class OpenWatch {
 public:
  explicit OpenWatch(const std::vector<fs::path>& files) : descriptor_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    for (const fs::path& file : files) EXPECT_GE(inotify_add_watch(descriptor_, file.c_str(), IN_OPEN), 0) << file;
  }
  ~OpenWatch() { close(descriptor_); }
  OpenWatch(const OpenWatch&) = delete;
  OpenWatch& operator=(const OpenWatch&) = delete;

  bool opened() const {
    inotify_event event{};  // A watched file's events carry no name.
    return read(descriptor_, &event, sizeof event) > 0;
  }

 private:
  int descriptor_;
};

TEST_F(Shards, AreReadAsOneSet) {
  const SafetensorsSet set(model());
  EXPECT_EQ(set.tensors().size(), 3U);
  EXPECT_EQ(set.files().size(), 2U);
  EXPECT_EQ(floats_of(*set.find("b"))[0], 3.0F);
  EXPECT_EQ(floats_of(*set.find("c"))[0], 4.0F);
}

TEST_F(Shards, GiveWayToASingleFile) {
  write_file(model() / "model.safetensors", safetensors_file({{"a", "F32", {1}, {9}}}));
  const SafetensorsSet set(model());
  ASSERT_EQ(set.tensors().size(), 1U);
  EXPECT_EQ(floats_of(*set.find("a"))[0], 9.0F);
}

TEST_F(Shards, NamesThatLeaveTheFolderAreRefused) {
  fs::create_directory(model() / "sub");
  const fs::path above = folder_.path() / "x.safetensors", below = model() / "sub/x.safetensors";
  for (const fs::path& file : {above, below}) write_file(file, safetensors_file({{"a", "F32", {1}, {9}}}));
  const OpenWatch watch({above, below});
  for (const std::string& name :
       std::vector<std::string>{"../x.safetensors", above, "sub/x.safetensors", below, "sub\\\\x.safetensors",
                                "x\\u0000.safetensors", "", "..", ".", "one.bin"}) {
    write_index(R"({"b":"two.safetensors","c":"two.safetensors","a":")" + name + "\"}");
    EXPECT_TRUE(refuses(Code::bad_file, {"tensor 'a'", "plain name"})) << name;
  }
  write_index(R"({"a":["one.safetensors"]})");
  EXPECT_TRUE(refuses(Code::bad_file, {"key 'weight_map.a'"}));
  EXPECT_FALSE(watch.opened());
  (void)test::read_file(above);
  EXPECT_TRUE(watch.opened()) << "the watch is blind";
}

TEST_F(Shards, LinksMayLeadIntoTheFolderOrTheHubCacheOnly) {
  const fs::path outside = folder_.path() / "outside.safetensors";
  write_file(outside, safetensors_file({{"a", "F32", {1}, {9}}}));
  fs::remove(model() / "one.safetensors");
  fs::create_symlink(outside, model() / "one.safetensors");
  const OpenWatch watch({outside});
  EXPECT_TRUE(refuses(Code::bad_file, {"'a'", "'one.safetensors'", "symbolic link"}));
  EXPECT_FALSE(watch.opened());

  fs::remove(model() / "one.safetensors");
  write_file(model() / "real.safetensors", safetensors_file({{"a", "F32", {1}, {5}}}));
  fs::create_symlink("real.safetensors", model() / "one.safetensors");
  EXPECT_EQ(SafetensorsSet(model()).tensors().size(), 3U);

  // models--org--name/{blobs, snapshots/<revision>}, as hub caches are laid out.
  const fs::path repository = folder_.path() / "models--org--name";
  const fs::path snapshot = repository / "snapshots/abc";
  fs::create_directories(repository / "blobs");
  fs::create_directories(snapshot);
  write_file(repository / "blobs/1234", safetensors_file({{"a", "F32", {1}, {7}}}));
  write_file(snapshot / "model.safetensors.index.json", R"({"weight_map":{"a":"one.safetensors"}})");
  fs::create_symlink("../../blobs/1234", snapshot / "one.safetensors");
  EXPECT_EQ(floats_of(*SafetensorsSet(snapshot).find("a"))[0], 7.0F);
}

TEST_F(Shards, MustHoldExactlyWhatTheIndexSays) {
  write_index(R"({"a":"one.safetensors","b":"two.safetensors","c":"two.safetensors","d":"two.safetensors"})");
  EXPECT_TRUE(refuses(Code::bad_file, {"tensor 'd'", "'two.safetensors'"}));
  write_index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  EXPECT_TRUE(refuses(Code::bad_file, {"tensor 'c'", "two.safetensors", "index.json"}));
  write_index(R"({"a":"one.safetensors","b":"two.safetensors","c":"one.safetensors"})");
  EXPECT_TRUE(refuses(Code::bad_file, {"tensor 'c'", "two.safetensors"}));
  write_index("{}");
  EXPECT_TRUE(refuses(Code::bad_file, {"maps no tensor"}));
}

TEST_F(Shards, MissingOrCutShortAreRefused) {
  const std::string whole = test::read_file(model() / "two.safetensors");
  write_file(model() / "two.safetensors", whole.substr(0, whole.size() - 4));
  EXPECT_TRUE(refuses(Code::bad_file, {"two.safetensors", std::to_string(whole.size() - 4),
                                       std::to_string(whole.size()), "Download not complete?"}));
  write_file(model() / "two.safetensors",
             "version https://git-lfs.github.com/spec/v1\noid "
             "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n");
  EXPECT_TRUE(refuses(Code::bad_file, {"two.safetensors", "Git LFS pointer"}));
  fs::remove(model() / "two.safetensors");
  EXPECT_TRUE(refuses(Code::not_found, {"'two.safetensors'", "Download not complete?"}));
}

TEST_F(Shards, SayWhatLiesThereInstead) {
  for (const auto& name : {"one.safetensors", "two.safetensors", "model.safetensors.index.json"})
    fs::remove(model() / name);
  EXPECT_TRUE(refuses(Code::not_found, {"model.safetensors", "index.json"}));
  write_file(model() / "pytorch_model.bin", "x");
  EXPECT_TRUE(refuses(Code::unsupported, {"pytorch_model.bin", "pickle", "save_pretrained"}));
  write_file(model() / "weights.safetensors", "x");
  EXPECT_TRUE(refuses(Code::not_found, {"'weights.safetensors'", "name it model.safetensors"}));
  EXPECT_TRUE(fails_with(Code::not_found, {"no folder"}, [&] { SafetensorsSet{folder_.path() / "none"}; }));
}

TEST(SafetensorsReal, Stories260kHasItsTensors) {
  const auto shared = test::shared_data_directory();
  if (!shared || !fs::exists(*shared / "stories260k/model.safetensors")) GTEST_SKIP() << "no shared data: stories260k";
  const SafetensorsSet set(*shared / "stories260k");
  const Tensor* embedding = set.find("model.embed_tokens.weight");
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(embedding->shape, (std::vector<std::int64_t>{512, 64}));
  EXPECT_EQ(embedding->dtype, Dtype::f32);
}

}  // namespace
}  // namespace duet::loaders
