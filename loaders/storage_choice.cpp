#include "loaders/storage_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "duet/error.h"
#include "engine/quant_blocks.h"

namespace duet::loaders {
namespace {

WeightType asked_of(TensorRole role, const WeightOptions& options) {
  if (role == TensorRole::embedding) return options.embedding;
  return role == TensorRole::head ? options.head : options.linear;
}

Storage storage_of(WeightType type) {
  switch (type) {
    case WeightType::f16:
      return Storage::f16;
    case WeightType::bf16:
      return Storage::bf16;
    case WeightType::int8:
      return Storage::int8;
    case WeightType::nf4:
      return Storage::nf4;
    case WeightType::fp4:
      return Storage::fp4;
    case WeightType::automatic:
    case WeightType::as_stored:
    case WeightType::f32:
      break;
  }
  return Storage::f32;
}

WeightType type_of(Storage storage) {
  switch (storage) {
    case Storage::f32:
      break;
    case Storage::f16:
      return WeightType::f16;
    case Storage::bf16:
      return WeightType::bf16;
    case Storage::int8:
      return WeightType::int8;
    case Storage::nf4:
      return WeightType::nf4;
    case Storage::fp4:
      return WeightType::fp4;
  }
  return WeightType::f32;
}

bool keeps_what_is_stored(WeightType type) { return type == WeightType::as_stored || type == WeightType::automatic; }

bool is_4bit(WeightType type) { return type == WeightType::nf4 || type == WeightType::fp4; }

std::array<WeightType, 3> all_types(const WeightOptions& options) {
  return {options.linear, options.head, options.embedding};
}

bool any_4bit(const WeightOptions& options) {
  const auto types = all_types(options);
  return std::any_of(types.begin(), types.end(), is_4bit);
}

StorageSpec asked_spec(WeightType type, const WeightOptions& options) {
  const Storage storage = storage_of(type);
  if (!is_quantised(storage)) return {storage, 0, false};
  if (storage == Storage::int8)
    return {storage, any_4bit(options) ? std::min(options.block_size, 64) : options.block_size, false};
  return {storage, options.block_size, options.double_quant};
}

}  // namespace

std::string_view name_of(WeightType type) {
  if (type == WeightType::automatic) return "auto";
  return type == WeightType::as_stored ? "as-stored" : name_of(storage_of(type));
}

WeightType main_weight_type(const std::vector<WeightTensor>& tensors) {
  std::map<Storage, std::int64_t> elements;
  for (const WeightTensor& tensor : tensors)
    if (tensor.row.role == TensorRole::linear) elements[tensor.storage.storage] += tensor.row.rows * tensor.row.columns;
  const auto most = std::max_element(elements.begin(), elements.end(),
                                     [](const auto& one, const auto& other) { return one.second < other.second; });
  return most == elements.end() ? WeightType::f32 : type_of(most->first);
}

void check_options(const WeightOptions& options) {
  for (const WeightType type : all_types(options)) {
    if (keeps_what_is_stored(type)) continue;
    const StorageSpec spec = asked_spec(type, options);
    if (!is_quantised(spec.storage) || is_legal_block_size(spec.storage, spec.block_size)) continue;
    throw Error(Code::invalid_argument,
                fmt::format("Block size {} is not one that {} can have", options.block_size, name_of(type)),
                spec.storage == Storage::int8 ? "Take 32 or 64" : "Take a power of two from 32 to 4096");
  }
}

StorageSpec chosen_storage(const TensorRow& row, const StorageSpec& stored, const WeightOptions& options,
                           std::string_view source) {
  if (row.role == TensorRole::vector) return {Storage::f32, 0, false};
  // What was quantised elsewhere keeps the numbers it has left.
  if (row.role == TensorRole::decision) return is_quantised(stored.storage) ? StorageSpec{} : stored;
  const WeightType asked = asked_of(row.role, options);
  if (keeps_what_is_stored(asked)) return stored;
  const StorageSpec wanted = asked_spec(asked, options);
  if (!is_quantised(stored.storage) || !is_quantised(wanted.storage)) return wanted;
  if (wanted.storage == stored.storage) return stored;
  throw Error(Code::unsupported,
              fmt::format("{} is stored as {}; quantising it again as {} would lose twice", source,
                          name_of(stored.storage), name_of(asked)),
              "Ask for as-stored, or start from the 16-bit checkpoint");
}

void note_ignored_options(const WeightOptions& options, bool tied_head, std::vector<std::string>& report) {
  if (tied_head && !keeps_what_is_stored(options.head) && options.head != options.embedding)
    report.push_back(
        fmt::format("The head is tied to the embedding: {} asked for the head has no effect, the embedding's "
                    "{} rules both",
                    name_of(options.head), name_of(options.embedding)));
  if (options.double_quant && !any_4bit(options))
    report.push_back("Double quantisation was asked, but no 4-bit type: it has no effect");
}

}  // namespace duet::loaders
