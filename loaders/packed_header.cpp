#include "loaders/packed_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <limits>
#include <optional>

#include "duet/error.h"
#include "engine/quant_blocks.h"
#include "loaders/checksum.h"
#include "loaders/names.h"

namespace duet::loaders {
namespace {

/// As in PNG: a byte that is no letter, line ends and an end-of-file sign, so that a copy made as text is noticed.
constexpr std::array<unsigned char, 8> kMagic = {'D', 'U', 'E', 'T', 0x0D, 0x0A, 0x1A, 0x0A};
constexpr std::int64_t kLargestInteger = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kLargestOffset = std::int64_t{1} << 52;  // Exact in every JSON reader.

template <typename T>
void put(std::span<std::byte> bytes, std::size_t offset, T value) {
  static_assert(std::endian::native == std::endian::little, "packed files are little-endian");
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

template <typename T>
T get(std::span<const std::byte> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

}  // namespace

// ---- prologue ----

std::array<std::byte, kPrologueBytes> encode(const PackedPrologue& prologue) {
  std::array<std::byte, kPrologueBytes> bytes{};
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  put(std::span(bytes), 8, kPackedVersion);
  put(std::span(bytes), 16, prologue.directory_bytes);
  put(std::span(bytes), 24, prologue.directory_checksum);
  put(std::span(bytes), 32, prologue.file_bytes);
  put(std::span(bytes), 56, checksum_of(std::span(bytes).first(56)));
  return bytes;
}

bool has_packed_magic(std::span<const std::byte> first_bytes) {
  return first_bytes.size() >= kMagic.size() && std::memcmp(first_bytes.data(), kMagic.data(), kMagic.size()) == 0;
}

PackedPrologue decode_prologue(std::span<const std::byte> bytes, const std::string& source) {
  if (bytes.size() < kPrologueBytes || !has_packed_magic(bytes))
    throw Error(Code::bad_file, fmt::format("{} is not a packed file of Duet: it does not begin as one", quote(source)),
                "Make one with engine_pack, or name the folder of a Hugging Face checkpoint");
  const auto version = get<std::uint32_t>(bytes, 8);
  if (version != kPackedVersion)
    throw Error(Code::unsupported,
                fmt::format("{} has version {} of the packed format; this Duet reads version {}", quote(source),
                            version, kPackedVersion),
                "Pack the checkpoint again with this version's engine_pack");
  if (get<std::uint64_t>(bytes, 56) != checksum_of(bytes.first(56)))
    throw Error(Code::bad_file, fmt::format("The first 64 bytes of {} do not match their checksum", quote(source)),
                "Copy or pack the file again");
  PackedPrologue prologue;
  prologue.directory_bytes = get<std::uint64_t>(bytes, 16);
  prologue.directory_checksum = get<std::uint64_t>(bytes, 24);
  prologue.file_bytes = get<std::uint64_t>(bytes, 32);
  return prologue;
}

// ---- enumerations as words ----

namespace {

constexpr std::array kStorages = {Storage::f32, Storage::f16, Storage::bf16, Storage::nf4, Storage::fp4, Storage::int8};
constexpr std::array<std::string_view, 4> kRopeKinds = {"default", "linear", "llama3", "yarn"};  // As RopeKind counts.

Storage storage_from(const JsonObject& object) {
  const std::string name = object.text("storage");
  const auto found = std::find_if(kStorages.begin(), kStorages.end(), [&](Storage s) { return name_of(s) == name; });
  if (found == kStorages.end()) object.refuse("storage", "f32, f16, bf16, nf4, fp4 or int8");
  return *found;
}

RopeKind rope_kind_from(const JsonObject& object) {
  const auto found = std::find(kRopeKinds.begin(), kRopeKinds.end(), object.text("kind"));
  if (found == kRopeKinds.end()) object.refuse("kind", "default, linear, llama3 or yarn");
  return static_cast<RopeKind>(found - kRopeKinds.begin());
}

const Json& list_of(const JsonObject& object, std::string_view key) {
  const Json* list = object.find(key);
  if (list == nullptr || !list->is_array()) object.refuse(key, "a list");
  return *list;
}

JsonObject object_of(const JsonObject& parent, std::string_view key) {
  auto object = parent.object(key);
  if (!object) parent.refuse(key, "an object");
  return *object;
}

}  // namespace

// ---- spec ----

namespace {

Json rope_to_json(const RopeSpec& rope) {
  return {{"kind", kRopeKinds[static_cast<std::size_t>(rope.kind)]},
          {"theta", rope.theta},
          {"factor", rope.factor},
          {"low_frequency_factor", rope.low_frequency_factor},
          {"high_frequency_factor", rope.high_frequency_factor},
          {"original_max_position_tokens", rope.original_max_position_tokens},
          {"beta_fast", rope.beta_fast},
          {"beta_slow", rope.beta_slow},
          {"truncate", rope.truncate},
          {"attention_factor", rope.attention_factor}};
}

RopeSpec rope_from_json(const JsonObject& object) {
  RopeSpec rope;
  rope.kind = rope_kind_from(object);
  rope.theta = object.number("theta");
  rope.factor = object.number("factor");
  rope.low_frequency_factor = object.number("low_frequency_factor");
  rope.high_frequency_factor = object.number("high_frequency_factor");
  rope.original_max_position_tokens = object.number("original_max_position_tokens");
  rope.beta_fast = object.number("beta_fast");
  rope.beta_slow = object.number("beta_slow");
  rope.truncate = object.boolean_or("truncate", true);
  rope.attention_factor = object.number("attention_factor");
  return rope;
}

std::vector<bool> switches_from(const JsonObject& object, std::string_view key) {
  std::vector<bool> switches;
  for (const Json& value : list_of(object, key)) {
    if (!value.is_boolean()) object.refuse(key, "a list of true and false");
    switches.push_back(value.get<bool>());
  }
  return switches;
}

void read_hybrid(const JsonObject& object, ModelSpec& m) {
  const auto size = [&](std::string_view key) { return static_cast<int>(object.integer(key, 0, kLargestInteger)); };
  m.output_gate = object.boolean_or("output_gate", false);
  m.zero_centred_norms = object.boolean_or("zero_centred_norms", false);
  m.rotary_size = size("rotary_size");
  m.delta.layers = switches_from(object, "delta_layers");
  m.delta.key_heads = size("key_heads");
  m.delta.value_heads = size("value_heads");
  m.delta.key_size = size("key_size");
  m.delta.value_size = size("value_size");
  m.delta.convolution = size("convolution");
}

}  // namespace

Json spec_to_json(const ModelSpec& m) {
  Json json = {{"architecture", m.architecture},
               {"layers", m.layers},
               {"hidden", m.hidden},
               {"query_heads", m.query_heads},
               {"kv_heads", m.kv_heads},
               {"head_size", m.head_size},
               {"mlp", m.mlp},
               {"vocabulary", m.vocabulary},
               {"max_position_tokens", m.max_position_tokens},
               {"norm_epsilon", m.norm_epsilon},
               {"query_key_value_bias", m.query_key_value_bias},
               {"output_bias", m.output_bias},
               {"mlp_bias", m.mlp_bias},
               {"query_key_norm", m.query_key_norm},
               {"tied_head", m.tied_head},
               {"sliding_window_tokens", m.sliding_window_tokens},
               {"layer_slides", m.layer_slides},
               {"rope", rope_to_json(m.rope)},
               {"end_ids", m.end_ids},
               {"begin_id", m.begin_id}};
  if (m.is_hybrid())  // Files of other models stay as they were before there were hybrids.
    json["hybrid"] = {{"output_gate", m.output_gate},      {"zero_centred_norms", m.zero_centred_norms},
                      {"rotary_size", m.rotary_size},      {"delta_layers", m.delta.layers},
                      {"key_heads", m.delta.key_heads},    {"value_heads", m.delta.value_heads},
                      {"key_size", m.delta.key_size},      {"value_size", m.delta.value_size},
                      {"convolution", m.delta.convolution}};
  if (m.kind == ModelKind::encoder)
    json["encoder"] = {{"sliding_rope", rope_to_json(m.sliding_rope)},
                       {"decision_layers", m.decision_layers},
                       {"decision_heads", m.decision_heads},
                       {"act_outputs", m.act_outputs}};
  return json;
}

ModelSpec spec_from_json(const JsonObject& object) {
  const auto size = [&](std::string_view key) { return static_cast<int>(object.integer(key, 0, kLargestInteger)); };
  ModelSpec m;
  m.architecture = object.text("architecture");
  m.layers = size("layers");
  m.hidden = size("hidden");
  m.query_heads = size("query_heads");
  m.kv_heads = size("kv_heads");
  m.head_size = size("head_size");
  m.mlp = size("mlp");
  m.vocabulary = size("vocabulary");
  m.max_position_tokens = size("max_position_tokens");
  m.norm_epsilon = object.number("norm_epsilon");
  m.query_key_value_bias = object.boolean_or("query_key_value_bias", false);
  m.output_bias = object.boolean_or("output_bias", false);
  m.mlp_bias = object.boolean_or("mlp_bias", false);
  m.query_key_norm = object.boolean_or("query_key_norm", false);
  m.tied_head = object.boolean_or("tied_head", false);
  m.sliding_window_tokens = size("sliding_window_tokens");
  m.layer_slides = switches_from(object, "layer_slides");
  m.rope = rope_from_json(object_of(object, "rope"));
  if (const auto hybrid = object.object("hybrid")) read_hybrid(*hybrid, m);
  if (const auto encoder = object.object("encoder")) {
    const auto of_encoder = [&](std::string_view key) {
      return static_cast<int>(encoder->integer(key, 0, kLargestInteger));
    };
    m.kind = ModelKind::encoder;
    m.sliding_rope = rope_from_json(object_of(*encoder, "sliding_rope"));
    m.decision_layers = of_encoder("decision_layers");
    m.decision_heads = of_encoder("decision_heads");
    m.act_outputs = of_encoder("act_outputs");
  }
  for (const Json& id : list_of(object, "end_ids")) {
    const bool fits = id.is_number_unsigned() && id.get<std::uint64_t>() <= std::uint64_t{kLargestInteger};
    if (!fits) object.refuse("end_ids", "a list of token ids");
    m.end_ids.push_back(id.get<std::int32_t>());
  }
  m.begin_id = static_cast<std::int32_t>(object.integer("begin_id", -1, kLargestInteger));
  check(m, object.source());
  return m;
}

// ---- directory ----

namespace {

void put_extent(Json& object, const PackedExtent& extent) {
  object["offset"] = extent.offset;
  object["bytes"] = extent.bytes;
  object["checksum"] = hex_of(extent.checksum);  // Text: 64 bits do not survive every JSON reader.
}

PackedExtent extent_from(const JsonObject& object) {
  PackedExtent extent;
  extent.offset = static_cast<std::uint64_t>(object.integer("offset", 0, kLargestOffset));
  extent.bytes = static_cast<std::uint64_t>(object.integer("bytes", 0, kLargestOffset));
  const std::string sum = object.text("checksum");
  const auto [end, failure] = std::from_chars(sum.data(), sum.data() + sum.size(), extent.checksum, 16);
  if (sum.size() != 16 || failure != std::errc() || end != sum.data() + 16)
    object.refuse("checksum", "16 hexadecimal digits");
  return extent;
}

/// Extents stand in the order of the file, aligned, apart from each other and inside it.
class ExtentChecker {
 public:
  ExtentChecker(std::uint64_t first, std::uint64_t file_bytes) : free_from_(first), file_bytes_(file_bytes) {}

  void take(const JsonObject& object, const PackedExtent& extent) {
    if (extent.offset % kPackedAlignment != 0) object.refuse("offset", "a multiple of 4096");
    if (extent.offset < free_from_)
      object.refuse("offset", fmt::format("at least {}, where the piece before ends,", free_from_));
    if (extent.offset > file_bytes_ || extent.bytes > file_bytes_ - extent.offset)
      object.refuse("bytes", fmt::format("a piece inside the file's {} bytes", file_bytes_));
    free_from_ = extent.offset + extent.bytes;
  }

 private:
  std::uint64_t free_from_;
  std::uint64_t file_bytes_;
};

WeightTensor tensor_from(const JsonObject& object, const TensorRow& row) {
  if (object.text("name") != row.name)
    object.refuse("name", fmt::format("{}, which comes next in this model,", quote(row.name)));
  if (object.integer("rows", 0, kLargestOffset) != row.rows) object.refuse("rows", fmt::to_string(row.rows));
  if (object.integer("columns", 0, kLargestOffset) != row.columns)
    object.refuse("columns", fmt::to_string(row.columns));
  WeightTensor tensor;
  tensor.row = row;
  tensor.storage.storage = storage_from(object);
  const bool blocks = is_quantised(tensor.storage.storage);
  tensor.storage.block_size = static_cast<int>(object.integer_or("block_size", 0, 0, kLargestInteger));
  tensor.storage.nested = object.boolean_or("nested", false);
  if (blocks ? !is_legal_block_size(tensor.storage.storage, tensor.storage.block_size) : tensor.storage.block_size != 0)
    object.refuse("block_size", blocks ? "a block size that the storage can have" : "0, as the storage has no blocks,");
  if (tensor.storage.nested && (!blocks || tensor.storage.storage == Storage::int8))
    object.refuse("nested", "false, as only 4-bit blocks have nested scales,");
  if (row.role == TensorRole::vector && tensor.storage.storage != Storage::f32)
    object.refuse("storage", "f32, as norms and biases are,");
  if (row.role == TensorRole::decision && blocks)
    object.refuse("storage", "f32, f16 or bf16, as it is never quantised,");
  tensor.bytes = layout_of(row.rows, row.columns, tensor.storage).bytes;
  return tensor;
}

std::string place(std::string_view list, std::size_t index) { return fmt::format("{}[{}]", list, index); }

}  // namespace

std::string to_json(const PackedDirectory& directory) {
  Json texts = Json::array();
  for (const PackedText& text : directory.texts) {
    Json object = {{"name", text.name}};
    put_extent(object, text.extent);
    texts.push_back(std::move(object));
  }
  Json tensors = Json::array();
  for (std::size_t i = 0; i < directory.tensors.size(); ++i) {
    const WeightTensor& tensor = directory.tensors[i];
    Json object = {{"name", tensor.row.name},
                   {"rows", tensor.row.rows},
                   {"columns", tensor.row.columns},
                   {"storage", name_of(tensor.storage.storage)}};
    if (is_quantised(tensor.storage.storage)) object["block_size"] = tensor.storage.block_size;
    if (tensor.storage.nested) object["nested"] = true;
    put_extent(object, directory.extents[i]);
    tensors.push_back(std::move(object));
  }
  const Json root = {
      {"spec", spec_to_json(directory.spec)}, {"texts", std::move(texts)}, {"tensors", std::move(tensors)}};
  return root.dump(-1, ' ', true);
}

PackedDirectory parse_directory(std::string_view json, const std::string& source, std::uint64_t header_bytes,
                                std::uint64_t file_bytes) {
  const Json parsed = parse_json(json, source, {.bytes = kLargestDirectory, .depth = 8});
  const JsonObject root(parsed, source);
  PackedDirectory directory;
  directory.spec = spec_from_json(object_of(root, "spec"));
  ExtentChecker extents(header_bytes, file_bytes);

  const Json& texts = list_of(root, "texts");
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const JsonObject object(texts[i], source, place("texts", i));
    PackedText text{object.text("name"), extent_from(object)};
    extents.take(object, text.extent);
    if (text.extent.bytes > kLargestText) object.refuse("bytes", "at most 256 MiB");
    directory.texts.push_back(std::move(text));
  }

  const Json& tensors = list_of(root, "tensors");
  const std::vector<TensorRow> rows = tensors_of(directory.spec);
  if (tensors.size() != rows.size())
    throw Error(Code::bad_file, fmt::format("{} lists {} tensors; a model of this spec has {}", quote(source),
                                            tensors.size(), rows.size()));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const JsonObject object(tensors[i], source, place("tensors", i));
    directory.tensors.push_back(tensor_from(object, rows[i]));
    const PackedExtent extent = extent_from(object);
    if (extent.bytes != directory.tensors.back().bytes)
      object.refuse("bytes", fmt::format("{}, the size of its layout,", directory.tensors.back().bytes));
    extents.take(object, extent);
    directory.extents.push_back(extent);
  }
  return directory;
}

}  // namespace duet::loaders
