#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "cuda/launch.h"
#include "tests/support/gpu.h"

/// Projections for tests: random weights, activations and adapters on the host and on the card, and what float64 says
/// about them.
namespace duet::test {

/// An array on the card, uploaded from a vector; guarded.
template <class T>
class OnCard {
 public:
  explicit OnCard(const std::vector<T>& values) : buffer_(values.size() * sizeof(T)) { buffer_.upload(values.data()); }
  explicit OnCard(std::size_t count) : buffer_(count * sizeof(T)) {}  ///< Poisoned.
  T* data() const { return reinterpret_cast<T*>(buffer_.data()); }
  std::vector<T> values() const {
    std::vector<T> result(buffer_.size() / sizeof(T));
    buffer_.download(result.data());
    return result;
  }
  const PoisonedBuffer& buffer() const { return buffer_; }

 private:
  PoisonedBuffer buffer_;
};

/// A weight on both sides.
struct TestWeight {
  std::vector<std::byte> region;  ///< Arranged in rows.
  Matrix host;
  std::unique_ptr<PoisonedBuffer> card;
  cuda::DeviceMatrix device;
};
/// bf16 in tiles is held as f16 times a power of two.
TestWeight random_weight(std::int64_t rows, std::int64_t columns, const StorageSpec& spec,
                         cuda::Arrangement arrangement, std::mt19937& random);

/// Prepared rows of x: the numbers themselves (exactly f16 times a power of two), and on the card.
struct TestRows {
  std::int64_t columns = 0;
  std::vector<std::vector<float>> values;
  std::unique_ptr<OnCard<std::uint16_t>> x;
  std::unique_ptr<OnCard<float>> factors;
};
TestRows random_rows(int count, std::int64_t columns, std::mt19937& random);

/// What one adapter does to one part.
struct AdapterPlan {
  int rank = 0;  ///< 0: no LoRA.
  Storage a_storage = Storage::f16;
  Storage b_storage = Storage::f16;
  float scale = 2.0F;
  bool dora = false;
  bool lora_bias = false;
  bool replaced_bias = false;
  bool replaced_weight = false;  ///< In a_storage.
};

struct TestAdapterPart {
  AdapterPlan plan;
  TestWeight a, b, replacement;
  std::vector<float> lora_bias, row_scale, bias;  ///< Empty: none.
  std::vector<std::unique_ptr<OnCard<float>>> vectors;
};

/// A whole projection. Parts' biases are at place 2 part + 1, their weights at 2 part.
class ProjectionCase {
 public:
  struct PartShape {
    std::int64_t out;
    StorageSpec spec;
    cuda::Arrangement arrangement;
    bool bias;
  };
  /// adapters[slot][part]; row r uses slot r % (slots + 1) - 1, so that every third, say, uses none.
  ProjectionCase(std::int64_t columns, const std::vector<PartShape>& parts, int rows,
                 const std::vector<std::vector<AdapterPlan>>& adapters, std::uint32_t seed);

  /// y of every part for rows [first, first + count): [part][row * out]. Checks guards and counters, and that inputs
  /// are left alone. With `add`, y is 1 before.
  std::vector<std::vector<float>> run(int first, int count, bool add = false) const;

  /// z for rows [first, first + count): [rows, parts, max_rank], NaN where nothing was written.
  std::vector<float> shrink(int first, int count) const;

  /// What float64 says, and how far float32 sums of f16 codes may be off.
  struct Expected {
    std::vector<float> y;        ///< [rows * out]
    std::vector<double> bounds;  ///< Likewise.
  };
  std::vector<Expected> expected(int count, bool add = false) const;
  /// The same for z, [rows, parts, max_rank]; NaN where nothing may be written.
  Expected expected_z(int count) const;

  int slot_of(int row) const { return row % (static_cast<int>(adapters_.size()) + 1) - 1; }
  int max_rank() const { return max_rank_; }

 private:
  cuda::Projection projection(int first, int count) const;

  std::int64_t columns_;
  std::vector<PartShape> shapes_;
  std::vector<TestWeight> weights_;
  std::vector<std::vector<float>> biases_;
  std::vector<std::unique_ptr<OnCard<float>>> card_biases_;
  TestRows rows_;
  std::vector<std::vector<TestAdapterPart>> adapters_;
  std::unique_ptr<OnCard<cuda::AdapterPart>> table_;
  std::unique_ptr<OnCard<cuda::StepRow>> step_rows_;
  std::vector<float> request_scales_;
  int max_rank_ = 0;
  std::unique_ptr<OnCard<float>> z_;
  std::unique_ptr<OnCard<float>> partial_sums_;
  std::unique_ptr<OnCard<std::uint32_t>> counters_;
};

}  // namespace duet::test
