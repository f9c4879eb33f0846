#include "loaders/packed_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <functional>

#include "engine/quant_blocks.h"
#include "loaders/checksum.h"
#include "loaders/loaders.h"
#include "loaders/packed_header.h"
#include "tests/loaders/expect_error.h"
#include "tests/loaders/stored_pieces.h"
#include "tests/loaders/tiny_checkpoint.h"
#include "tests/support/compare.h"

namespace duet::loaders {
namespace {

namespace fs = std::filesystem;
using test::fails_with;
using test::read_file;
using test::write_file;

// ---- checksum ----

std::uint64_t sum_of(std::string_view text) { return checksum_of(std::as_bytes(std::span(text))); }

TEST(Checksum, KnownValues) {
  // From the xxHash specification's test vectors and the documentation of its Python package, seed 0.
  EXPECT_EQ(sum_of(""), 0xEF46DB3751D8E999);
  EXPECT_EQ(sum_of("a"), 0xD24EC4F1A98C6E5B);
  EXPECT_EQ(sum_of("abc"), 0x44BC2CF5AD770999);
  EXPECT_EQ(sum_of("Nobody inspects the spammish repetition"), 0xFBCEA83C8A378BF1);
}

TEST(Checksum, PiecesSumLikeTheWhole) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 31);
  for (const std::size_t piece : {1U, 7U, 31U, 32U, 33U, 64U, 999U}) {
    Checksum sum;
    for (std::size_t at = 0; at < text.size(); at += piece)
      sum.add(std::as_bytes(std::span(text)).subspan(at, std::min(piece, text.size() - at)));
    EXPECT_EQ(sum.value(), sum_of(text)) << piece;
  }
}

// ---- the file ----

std::vector<std::byte> region_of(const WeightSource& source, std::size_t index) {
  std::vector<std::byte> region(source.tensors().at(index).bytes, std::byte{0xA5});
  source.read(index, region);
  return region;
}

class PackedFile : public testing::Test {
 protected:
  PackedFile() {
    nlohmann::ordered_json config = test::tiny_config();
    config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
    config["eos_token_id"] = {2, 5};
    test::write_checkpoint(folder_.path(), config, test::tiny_tensors(test::spec_of(config)));
    write_file(folder_.path() / "tokenizer.json", "{\"some\": \"tokens\"}");
  }

  void pack(const WeightOptions& options) {
    source_ = open_checkpoint(folder_.path(), options);
    write_packed_file(file(), *source_, {{"tokenizer.json", "{\"some\": \"tokens\"}"}, {"empty.txt", ""}});
  }
  void pack_4bit() {
    WeightOptions options;
    options.linear = WeightType::nf4;
    options.embedding = WeightType::int8;
    options.double_quant = true;
    pack(options);
  }
  fs::path file() const { return folder_.path() / "tiny.duet"; }

  test::TemporaryDirectory folder_;
  std::shared_ptr<const WeightSource> source_;
};

TEST_F(PackedFile, EveryRegionComesBackByteForByte) {
  for (const WeightType type :
       {WeightType::as_stored, WeightType::f16, WeightType::bf16, WeightType::int8, WeightType::nf4, WeightType::fp4})
    for (const bool nested : {false, true}) {
      WeightOptions options;
      options.linear = options.embedding = type;
      options.double_quant = nested;
      pack(options);
      const auto packed = open_checkpoint(file(), {});
      EXPECT_EQ(packed->spec(), source_->spec());
      ASSERT_EQ(packed->tensors().size(), source_->tensors().size());
      for (std::size_t i = 0; i < packed->tensors().size(); ++i) {
        EXPECT_EQ(packed->tensors()[i].row.name, source_->tensors()[i].row.name);
        EXPECT_EQ(packed->tensors()[i].storage, source_->tensors()[i].storage);
        EXPECT_EQ(region_of(*packed, i), region_of(*source_, i)) << packed->tensors()[i].row.name;
      }
    }
}

TEST_F(PackedFile, StreamsEveryRegionInPiecesOfAnySize) {
  pack_4bit();
  const auto packed = open_checkpoint(file(), {});
  for (std::size_t i = 0; i < packed->tensors().size(); ++i) {
    ASSERT_EQ(packed->stored(i), packed->tensors()[i].storage);
    for (const std::size_t room : {std::size_t{7}, std::size_t{64}, std::size_t{1} << 20}) {
      test::Pieces pieces(room);
      packed->stream(i, pieces);
      EXPECT_EQ(pieces.bytes, region_of(*packed, i)) << packed->tensors()[i].row.name << ", pieces of " << room;
    }
  }
}

TEST_F(PackedFile, RegionsAndTextsLieAlignedAndAreTheLayoutsBytes) {
  pack_4bit();
  const std::string bytes = read_file(file());
  const PackedPrologue prologue = decode_prologue(std::as_bytes(std::span(bytes)).first(64), "tiny");
  const PackedDirectory directory = parse_directory(std::string_view(bytes).substr(64, prologue.directory_bytes),
                                                    "tiny", 64 + prologue.directory_bytes, bytes.size());
  for (std::size_t i = 0; i < directory.tensors.size(); ++i) {
    const PackedExtent& extent = directory.extents[i];
    EXPECT_EQ(extent.offset % 4096, 0U);
    const auto want = region_of(*source_, i);
    ASSERT_EQ(extent.bytes, want.size());
    EXPECT_EQ(std::memcmp(bytes.data() + extent.offset, want.data(), want.size()), 0);
  }
}

TEST_F(PackedFile, TextsTravelInside) {
  pack_4bit();
  EXPECT_EQ(read_checkpoint_text(file(), "tokenizer.json"), "{\"some\": \"tokens\"}");
  EXPECT_EQ(read_checkpoint_text(file(), "empty.txt"), "");
  EXPECT_EQ(read_checkpoint_text(file(), "config.json"), std::nullopt);
}

TEST_F(PackedFile, PackingTwiceGivesTheSameFile) {
  pack_4bit();
  const std::string first = read_file(file());
  pack_4bit();
  EXPECT_EQ(read_file(file()), first);
}

TEST_F(PackedFile, OtherStorageMayBeAskedOfIt) {
  pack({});
  WeightOptions options;
  options.linear = WeightType::nf4;
  const auto direct = open_checkpoint(folder_.path(), options);
  const auto packed = open_checkpoint(file(), options);
  for (std::size_t i = 0; i < packed->tensors().size(); ++i)
    EXPECT_EQ(region_of(*packed, i), region_of(*direct, i)) << packed->tensors()[i].row.name;
  pack_4bit();
  options.linear = WeightType::fp4;
  EXPECT_TRUE(fails_with(Code::unsupported, {"nf4", "fp4"}, [&] { open_checkpoint(file(), options); }));
}

TEST_F(PackedFile, ConfigAloneReadsTheHeader) {
  pack_4bit();
  const ConfigOnly config = read_config_only(file(), {});
  EXPECT_EQ(config.spec, source_->spec());
  EXPECT_EQ(config.tensors.size(), source_->tensors().size());
}

TEST_F(PackedFile, IdentityFollowsTheFile) {
  pack_4bit();
  const std::string first = open_checkpoint(file(), {})->identity();
  EXPECT_EQ(open_checkpoint(folder_.path() / "." / "tiny.duet", {})->identity(), first);
  pack({});
  EXPECT_NE(open_checkpoint(file(), {})->identity(), first);
}

// ---- writing that fails ----

class FailingSource final : public WeightSource {
 public:
  explicit FailingSource(const WeightSource& good) : good_(good) {}
  const ModelSpec& spec() const override { return good_.spec(); }
  const std::string& name() const override { return good_.name(); }
  const std::string& identity() const override { return good_.identity(); }
  const std::vector<WeightTensor>& tensors() const override { return good_.tensors(); }
  const std::vector<std::string>& report() const override { return good_.report(); }
  void read(std::size_t index, std::span<std::byte> region) const override {
    if (index == 7) throw Error(Code::non_finite, "Tensor seven is bad");
    good_.read(index, region);
  }

 private:
  const WeightSource& good_;
};

std::size_t files_in(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST_F(PackedFile, AFailedWriteLeavesNothingAndKeepsWhatWasThere) {
  const auto source = open_checkpoint(folder_.path(), {});
  const std::size_t before = files_in(folder_.path());
  EXPECT_TRUE(fails_with(Code::non_finite, {"seven"}, [&] { write_packed_file(file(), FailingSource(*source), {}); }));
  EXPECT_EQ(files_in(folder_.path()), before);
  write_file(file(), "older");
  EXPECT_TRUE(fails_with(Code::non_finite, {"seven"}, [&] { write_packed_file(file(), FailingSource(*source), {}); }));
  EXPECT_EQ(read_file(file()), "older");
}

TEST_F(PackedFile, APlaceThatCannotBeWrittenIsNamed) {
  const auto source = open_checkpoint(folder_.path(), {});
  EXPECT_TRUE(fails_with(Code::not_found, {"nowhere/x.duet"},
                         [&] { write_packed_file(folder_.path() / "nowhere/x.duet", *source, {}); }));
  EXPECT_TRUE(
      fails_with(Code::invalid_argument, {"directory"}, [&] { write_packed_file(folder_.path(), *source, {}); }));
}

// ---- damage ----

class DamagedFile : public PackedFile {
 protected:
  DamagedFile() {
    pack_4bit();
    bytes_ = read_file(file());
    directory_bytes_ = decode_prologue(std::as_bytes(std::span(bytes_)).first(64), "tiny").directory_bytes;
  }

  testing::AssertionResult refused(std::initializer_list<std::string_view> parts, Code code = Code::bad_file) {
    return fails_with(code, parts, [&] {
      const auto source = open_checkpoint(file(), {});
      for (std::size_t i = 0; i < source->tensors().size(); ++i) region_of(*source, i);
    });
  }

  /// A file whose directory was changed by someone who also put the checksums right.
  testing::AssertionResult refused_directory(const std::function<void(Json&)>& change,
                                             std::initializer_list<std::string_view> parts,
                                             Code code = Code::bad_file) {
    Json directory = parse_json(std::string_view(bytes_).substr(64, directory_bytes_), "tiny");
    change(directory);
    return refused_text(directory.dump(), parts, code);
  }

  testing::AssertionResult refused_text(std::string json, std::initializer_list<std::string_view> parts,
                                        Code code = Code::bad_file) {
    std::string bytes = bytes_;
    const std::uint64_t file_bytes = bytes.size();
    // The directory is replaced in place; a longer one takes the padding behind it.
    json.resize(std::max<std::size_t>(json.size(), directory_bytes_), ' ');
    bytes.replace(64, json.size(), json);
    const auto prologue = encode({json.size(), checksum_of(std::as_bytes(std::span(json))), file_bytes});
    bytes.replace(0, 64, reinterpret_cast<const char*>(prologue.data()), 64);
    write_file(file(), bytes);
    return refused(parts, code);
  }

  std::string bytes_;
  std::uint64_t directory_bytes_ = 0;
};

TEST_F(DamagedFile, CutFilesAreRefused) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{7}, std::size_t{63}}) {
    write_file(file(), bytes_.substr(0, bytes));
    EXPECT_TRUE(refused({"tiny.duet", "does not begin"})) << bytes;
  }
  for (const std::size_t bytes : {std::size_t{64}, std::size_t{100}, bytes_.size() - 1000, bytes_.size() - 1}) {
    write_file(file(), bytes_.substr(0, bytes));
    EXPECT_TRUE(refused({"tiny.duet", std::to_string(bytes), std::to_string(bytes_.size()), "not complete"})) << bytes;
  }
  write_file(file(), bytes_ + "x");
  EXPECT_TRUE(refused({std::to_string(bytes_.size() + 1)}));
}

TEST_F(DamagedFile, AFlippedBitIsFoundAndTheTensorNamed) {
  const PackedDirectory directory = parse_directory(std::string_view(bytes_).substr(64, directory_bytes_), "tiny",
                                                    64 + directory_bytes_, bytes_.size());
  for (const std::size_t index : {std::size_t{0}, std::size_t{4}, directory.tensors.size() - 1}) {
    std::string bytes = bytes_;
    bytes[directory.extents[index].offset + directory.extents[index].bytes / 2] ^= 0x10;
    write_file(file(), bytes);
    EXPECT_TRUE(refused({"tiny.duet", directory.tensors[index].row.name, "sum to"}));
    const auto opened = open_checkpoint(file(), {});
    EXPECT_TRUE(fails_with(Code::bad_file, {"tiny.duet", directory.tensors[index].row.name, "sum to"}, [&] {
      test::Pieces pieces(4096);
      opened->stream(index, pieces);
    }));
  }
  std::string bytes = bytes_;
  bytes[directory.texts[0].extent.offset] ^= 1;
  write_file(file(), bytes);
  EXPECT_TRUE(fails_with(Code::bad_file, {"tokenizer.json"}, [&] { read_checkpoint_text(file(), "tokenizer.json"); }));
}

TEST_F(DamagedFile, AFlippedBitInTheHeaderIsFound) {
  for (const std::size_t at :
       {std::size_t{16}, std::size_t{25}, std::size_t{33}, std::size_t{57}, std::size_t{70}, std::size_t{64 + 500}}) {
    std::string bytes = bytes_;
    bytes[at] ^= 4;
    write_file(file(), bytes);
    EXPECT_TRUE(refused({"checksum"})) << at;
  }
}

TEST_F(DamagedFile, ANewerVersionSaysWhatToDo) {
  std::string bytes = bytes_;
  bytes[8] = 2;
  write_file(file(), bytes);
  EXPECT_TRUE(refused({"version 2", "reads version 1", "engine_pack"}, Code::unsupported));
}

TEST_F(DamagedFile, OtherFilesAreToldApart) {
  write_file(file(), std::string(10000, 'G'));
  EXPECT_TRUE(refused({"not a packed file", "engine_pack"}));
}

TEST_F(DamagedFile, DirectoriesThatLieAboutLengthAreRefused) {
  for (const std::uint64_t length : {std::uint64_t{0}, std::uint64_t{1} << 40, ~std::uint64_t{0} - 7, bytes_.size()}) {
    std::string bytes = bytes_;
    const auto prologue = encode({length, 0, bytes.size()});
    bytes.replace(0, 64, reinterpret_cast<const char*>(prologue.data()), 64);
    write_file(file(), bytes);
    EXPECT_TRUE(refused({"tiny.duet", "directory"}, Code::bad_file)) << length;
  }
}

TEST_F(DamagedFile, ExtentsThatLieAreRefused) {
  const auto tensor = [](std::size_t index, const char* key, const Json& value) {
    return [=](Json& directory) { directory["tensors"][index][key] = value; };
  };
  EXPECT_TRUE(refused_directory(tensor(3, "offset", 0), {"tensors[3].offset"}));
  EXPECT_TRUE(refused_directory(tensor(3, "offset", -4096), {"tensors[3].offset"}));
  EXPECT_TRUE(refused_directory(tensor(3, "offset", 4097), {"tensors[3].offset", "4096"}));
  EXPECT_TRUE(refused_directory(tensor(3, "offset", 4096), {"tensors[3].offset", "piece before"}));
  EXPECT_TRUE(refused_directory(tensor(3, "offset", std::uint64_t{1} << 63), {"tensors[3].offset"}));
  EXPECT_TRUE(refused_directory(tensor(3, "offset", std::uint64_t{1} << 50), {"tensors[3].bytes"}));
  EXPECT_TRUE(refused_directory(tensor(3, "offset", "4096"), {"tensors[3].offset"}));
  EXPECT_TRUE(refused_directory(tensor(3, "bytes", 1), {"tensors[3].bytes", "layout"}));
  EXPECT_TRUE(refused_directory(tensor(3, "bytes", nullptr), {"tensors[3].bytes"}));
  EXPECT_TRUE(refused_directory(tensor(3, "checksum", "xyz"), {"tensors[3].checksum"}));
  EXPECT_TRUE(refused_directory(tensor(3, "rows", 1), {"tensors[3].rows"}));
  EXPECT_TRUE(refused_directory(tensor(3, "columns", 1e9), {"tensors[3].columns"}));
  EXPECT_TRUE(refused_directory(tensor(3, "name", "model.norm.weight"), {"tensors[3].name"}));
  EXPECT_TRUE(refused_directory(tensor(3, "storage", "nf8"), {"tensors[3].storage"}));
  EXPECT_TRUE(refused_directory(tensor(3, "storage", "f16"), {"tensors[3]"}));
  EXPECT_TRUE(refused_directory(tensor(3, "block_size", 48), {"tensors[3].block_size"}));
  EXPECT_TRUE(refused_directory(tensor(0, "nested", true), {"tensors[0].nested"}));
  EXPECT_TRUE(refused_directory([](Json& d) { d["tensors"].erase(3); }, {"tensors"}));
  EXPECT_TRUE(refused_directory([](Json& d) { d["texts"][0]["bytes"] = std::int64_t{1} << 40; }, {"texts[0].bytes"}));
  EXPECT_TRUE(refused_directory([](Json& d) { d["texts"] = 3; }, {"texts"}));
}

TEST_F(DamagedFile, SpecsThatMakeNoSenseAreRefused) {
  const auto spec = [](const char* key, const Json& value) { return [=](Json& d) { d["spec"][key] = value; }; };
  for (const char* key : {"layers", "hidden", "query_heads", "kv_heads", "head_size", "mlp", "vocabulary"}) {
    EXPECT_TRUE(refused_directory(spec(key, 0), {"tiny.duet"})) << key;
    EXPECT_TRUE(refused_directory(spec(key, -1), {key})) << key;
    EXPECT_TRUE(refused_directory(spec(key, std::int64_t{1} << 60), {key})) << key;
    EXPECT_TRUE(refused_directory(spec(key, "8"), {key})) << key;
    EXPECT_TRUE(refused_directory(spec(key, 2147483647), {"tiny.duet"})) << key;
  }
  EXPECT_TRUE(refused_directory(spec("rope", nullptr), {"rope"}));
  EXPECT_TRUE(refused_directory(spec("layer_slides", {1, 2}), {"layer_slides"}));
  EXPECT_TRUE(refused_directory(spec("end_ids", {-1}), {"end_ids"}));
  EXPECT_TRUE(refused_directory([](Json& d) { d["spec"]["rope"]["kind"] = "spiral"; }, {"rope.kind"}));
  EXPECT_TRUE(refused_directory([](Json& d) { d.erase("spec"); }, {"spec"}));
}

TEST_F(DamagedFile, TextThatIsNoDirectoryIsRefusedInLittleMemory) {
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  EXPECT_TRUE(refused_text("[1, 2", {"tiny.duet"}));
  EXPECT_TRUE(refused_text("[]", {"tiny.duet"}));
  EXPECT_TRUE(refused_text(std::string(2000, '['), {"tiny.duet"}));
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 50L * 1024);  // Kibibytes.
}

TEST(PackedSpec, EveryFieldSurvives) {
  ModelSpec spec = test::spec_of(test::tiny_config());
  spec.architecture = "Qwen3ForCausalLM";
  spec.norm_epsilon = 1.2345678901234567e-6;
  spec.query_key_value_bias = spec.output_bias = spec.mlp_bias = spec.query_key_norm = true;
  spec.tied_head = false;
  spec.sliding_window_tokens = 17;
  spec.layer_slides = {true, false};
  spec.rope = {RopeKind::llama3, 500000.0, 32.0, 1.5, 4.5, 8192, 31.0, 2.0, false, 1.0 / 3.0};
  spec.end_ids = {2, 3, 319};
  spec.begin_id = -1;
  const Json json = parse_json(spec_to_json(spec).dump(), "spec");
  EXPECT_EQ(spec_from_json(JsonObject(json, "spec")), spec);
}

}  // namespace
}  // namespace duet::loaders
