#include <fmt/format.h>

#include <map>

#include "duet/error.h"
#include "engine/half.h"
#include "engine/quant_blocks.h"
#include "loaders/file_writer.h"
#include "loaders/json_file.h"
#include "loaders/safetensors_writer.h"
#include "loaders/synthetic.h"
#include "loaders/tensor_match.h"

// A weight source as a Hugging Face folder, tensor by tensor.
namespace duet::loaders {
namespace {

namespace fs = std::filesystem;

TensorToWrite plan_tensor(const WeightTensor& tensor, Storage storage) {
  return {tensor.row.name, storage == Storage::f16 ? "F16" : "BF16", shape_in_files(tensor.row), 2};
}

/// Vectors come in float32 and are stored like the matrices.
std::vector<std::byte> content_of(const WeightSource& source, std::size_t index, Storage storage) {
  const WeightTensor& tensor = source.tensors()[index];
  std::vector<std::byte> region(tensor.bytes);
  source.read(index, region);
  if (tensor.storage.storage == storage) return region;
  if (tensor.storage.storage != Storage::f32)
    throw Error(Code::internal,
                fmt::format("{} is {}, not {}", tensor.row.name, name_of(tensor.storage.storage), name_of(storage)));
  std::vector<std::byte> words(region.size() / 2);
  const auto* values = reinterpret_cast<const float*>(region.data());
  for (std::size_t i = 0; i < words.size() / 2; ++i) {
    if (storage == Storage::f16) reinterpret_cast<Half*>(words.data())[i] = to_half(values[i]);
    if (storage == Storage::bf16) reinterpret_cast<Bfloat16*>(words.data())[i] = to_bfloat16(values[i]);
  }
  return words;
}

void write_text(const fs::path& path, std::string_view text) {
  FileWriter file(path);
  file.write(0, std::as_bytes(std::span(text)));
  file.finish();
}

}  // namespace

void write_hf_folder(const fs::path& folder, const WeightSource& source, const TextFiles& texts, Storage storage,
                     const Progress& progress, std::uint64_t shard_bytes) {
  std::vector<std::vector<TensorToWrite>> shards(1);
  std::map<std::string, std::size_t> index_of;
  std::uint64_t total = 0, in_shard = 0;
  for (std::size_t i = 0; i < source.tensors().size(); ++i) {
    TensorToWrite tensor = plan_tensor(source.tensors()[i], storage);
    const std::uint64_t bytes = tensor.bytes();
    if (!shards.back().empty() && in_shard + bytes > shard_bytes) {
      shards.emplace_back();
      in_shard = 0;
    }
    in_shard += bytes;
    total += bytes;
    index_of[tensor.name] = i;
    shards.back().push_back(std::move(tensor));
  }

  fs::create_directories(folder);
  std::uint64_t done = 0;
  Json weight_map = Json::object();
  for (std::size_t s = 0; s < shards.size(); ++s) {
    const std::string name = shards.size() == 1 ? "model.safetensors"
                                                : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
    write_safetensors(folder / name, shards[s], [&](const TensorToWrite& tensor) {
      std::vector<std::byte> bytes = content_of(source, index_of.at(tensor.name), storage);
      done += bytes.size();
      if (progress) progress(done, total);
      return bytes;
    });
    for (const TensorToWrite& tensor : shards[s]) weight_map[tensor.name] = name;
  }
  if (shards.size() > 1)
    write_text(folder / "model.safetensors.index.json",
               Json({{"metadata", {{"total_size", total}}}, {"weight_map", std::move(weight_map)}}).dump(2) + '\n');
  for (const auto& [name, text] : texts) write_text(folder / name, text);
}

}  // namespace duet::loaders
