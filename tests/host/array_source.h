#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/adapter.h"
#include "engine/model.h"
#include "engine/weight_source.h"

/// Checkpoints and adapters made of arrays in the test itself: no file, no loader.
namespace duet::test {

/// Storage of a tensor; vectors are float32 whatever it says.
using StorageChoice = std::function<StorageSpec(const TensorRow&)>;

/// A checkpoint whose tensors are float arrays, drawn at random or set by the test.
class ArraySource final : public WeightSource {
 public:
  /// Normal weights with standard deviation `deviation`, norm weights near 1, biases near 0.
  ArraySource(ModelSpec spec, StorageChoice storage, std::uint32_t seed, float deviation = 0.15F);

  /// The array of one tensor, row-major; change it before loading.
  std::vector<float>& array(Part part, int layer);

  const ModelSpec& spec() const override { return spec_; }
  const std::string& name() const override { return name_; }
  const std::string& identity() const override { return name_; }
  const std::vector<WeightTensor>& tensors() const override { return tensors_; }
  void read(std::size_t index, std::span<std::byte> region) const override;
  const std::vector<std::string>& report() const override { return report_; }

 private:
  ModelSpec spec_;
  std::string name_;
  std::vector<WeightTensor> tensors_;
  std::vector<std::vector<float>> arrays_;
  std::vector<std::string> report_;
};

/// An adapter of arrays.
class ArrayAdapter final : public AdapterSource {
 public:
  explicit ArrayAdapter(std::string name) : name_(std::move(name)) {}

  struct Module {
    Part part = Part::query;
    int layer = 0;
    int rank = 0;
    float scale = 1;
    std::vector<float> a;          // [rank, in]
    std::vector<float> b;          // [out, rank]
    std::vector<float> bias;       // [out] or empty
    std::vector<float> magnitude;  // [out] or empty: DoRA
  };
  void add(const Module& module, Storage storage = Storage::f32);
  void replace(Part part, int layer, std::int64_t rows, std::int64_t columns, const std::vector<float>& values,
               Storage storage = Storage::f32);

  const AdapterSpec& spec() const override { return spec_; }
  const std::string& name() const override { return name_; }
  void read(std::size_t tensor_index, std::span<std::byte> destination) const override;
  const std::vector<std::string>& report() const override { return report_; }

 private:
  int add_tensor(AdapterTensorKind kind, Part part, int layer, std::int64_t rows, std::int64_t columns,
                 const std::vector<float>& values, Storage storage);
  std::string name_;
  AdapterSpec spec_;
  std::vector<std::vector<float>> arrays_;
  std::vector<std::string> report_;
};

/// Rows and columns of the matrix at `part` in this model.
std::pair<std::int64_t, std::int64_t> shape_of(const ModelSpec& spec, Part part);

/// Plain LoRA (or DoRA) of `rank` on `parts` of every layer that has them (embedding and head: layer -1), random A and
/// B.
ArrayAdapter random_adapter(const ModelSpec& spec, const std::vector<Part>& parts, int rank, float scale, bool dora,
                            Storage storage, std::uint32_t seed);

std::vector<float> random_floats(std::size_t count, float deviation, std::uint32_t seed);
std::vector<std::int32_t> random_tokens(std::size_t count, int vocabulary, std::uint32_t seed);

/// A small Qwen2-like model whose sizes are odd enough to find mistakes: hidden 64, 4 query heads over 2, MLP 96.
ModelSpec small_spec();

/// A small Qwen3.5-like model: layer 1 of 3 attends, 6 value heads over 2 key heads of other sizes, half of each head
/// of 24 rotated.
ModelSpec small_hybrid();

StorageChoice all_in(StorageSpec spec);

}  // namespace duet::test
