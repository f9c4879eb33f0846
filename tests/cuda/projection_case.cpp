#include "tests/cuda/projection_case.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/half.h"
#include "engine/host/host_math.h"
#include "engine/quant_blocks.h"

namespace duet::test {
namespace {

void put(std::vector<std::byte>& region, std::size_t index, Storage storage, float value) {
  if (storage == Storage::f32) std::memcpy(region.data() + index * 4, &value, 4);
  const Half half = to_half(value);
  if (storage == Storage::f16) std::memcpy(region.data() + index * 2, &half, 2);
  const Bfloat16 bfloat = to_bfloat16(value);
  if (storage == Storage::bf16) std::memcpy(region.data() + index * 2, &bfloat, 2);
}

std::vector<std::byte> random_region(std::int64_t rows, std::int64_t columns, const StorageSpec& spec,
                                     std::mt19937& random) {
  const MatrixLayout layout = layout_of(rows, columns, spec);
  std::vector<std::byte> region(layout.bytes);
  std::normal_distribution<float> normal(0.0F, 0.05F);
  if (!is_quantised(spec.storage)) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(rows * columns); ++i)
      put(region, i, spec.storage, normal(random));
    return region;
  }
  for (std::byte& byte : region) byte = static_cast<std::byte>(random() & 0xFFU);
  const auto fill = [&](std::size_t offset, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const float value = random() % 50 == 0 ? 0.0F : normal(random);
      std::memcpy(region.data() + offset + i * 4, &value, 4);
    }
  };
  if (spec.nested) {
    fill(layout.nested_scales_offset, layout.nested_scales_bytes / sizeof(float));
    fill(layout.nested_map_offset, 257);
  } else {
    fill(layout.scales_offset, layout.scales_bytes / sizeof(float));
  }
  return region;
}

TestWeight in_rows(std::int64_t rows, std::int64_t columns, Storage storage, std::mt19937& random) {
  return random_weight(rows, columns, {storage, 0, false}, cuda::Arrangement::rows, random);
}

/// The same matrix with every element's magnitude, in float32.
struct Magnitudes {
  std::vector<float> values;
  Matrix matrix;
};
Magnitudes magnitudes_of(const Matrix& matrix) {
  Magnitudes result{std::vector<float>(static_cast<std::size_t>(matrix.rows * matrix.columns)), {}};
  dequantise(matrix, 0, result.values);
  for (float& value : result.values) value = std::abs(value);
  result.matrix = view_of(matrix.rows, matrix.columns, {Storage::f32, 0, false},
                          reinterpret_cast<const std::byte*>(result.values.data()));
  return result;
}

std::vector<float> random_vector(std::int64_t count, float mean, float deviation, std::mt19937& random) {
  std::normal_distribution<float> normal(mean, deviation);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

constexpr double kEps32 = 0x1p-24;

}  // namespace

TestWeight random_weight(std::int64_t rows, std::int64_t columns, const StorageSpec& spec,
                         cuda::Arrangement arrangement, std::mt19937& random) {
  TestWeight weight;
  weight.region = random_region(rows, columns, spec, random);
  weight.host = view_of(rows, columns, spec, weight.region.data());
  auto source = std::make_unique<PoisonedBuffer>(weight.region.size());
  source->upload(weight.region.data());
  if (arrangement == cuda::Arrangement::rows) {
    weight.device = {view_of(rows, columns, spec, source->data()), arrangement, 1.0F};
    weight.card = std::move(source);
    return weight;
  }
  const StorageSpec held = spec.storage == Storage::bf16 ? StorageSpec{Storage::f16, 0, false} : spec;
  const float factor = spec.storage == Storage::bf16 ? 0x1p-12F : 1.0F;
  weight.card = std::make_unique<PoisonedBuffer>(weight.region.size());
  weight.card->upload(weight.region.data());  // nested scales and the map stay where they are
  weight.device = {view_of(rows, columns, held, weight.card->data()), arrangement, factor};
  cuda::tile(view_of(rows, columns, spec, source->data()), weight.device, 0, nullptr);
  DUET_CUDA(cudaDeviceSynchronize());
  return weight;
}

TestRows random_rows(int count, std::int64_t columns, std::mt19937& random) {
  TestRows rows;
  rows.columns = columns;
  const std::int64_t stride = cuda::prepared_stride(columns);
  std::vector<std::uint16_t> x(static_cast<std::size_t>(count * stride), 0);
  std::vector<float> factors;
  for (int r = 0; r < count; ++r) {
    std::vector<float> values = random_vector(columns, 0.0F, 2000.0F, random);
    const float factor = std::ldexp(1.0F, -14 + static_cast<int>(random() % 5));
    for (std::int64_t c = 0; c < columns; ++c) {
      float& value = values[static_cast<std::size_t>(c)];
      if (c == r % columns) value *= 5;  // a large one in every row, elsewhere each time
      const Half half = to_half(value);
      x[static_cast<std::size_t>(r * stride + c)] = static_cast<std::uint16_t>(half);
      value = to_float(half) * factor;
    }
    factors.push_back(factor);
    rows.values.push_back(std::move(values));
  }
  rows.x = std::make_unique<OnCard<std::uint16_t>>(x);
  rows.factors = std::make_unique<OnCard<float>>(factors);
  return rows;
}

ProjectionCase::ProjectionCase(std::int64_t columns, const std::vector<PartShape>& parts, int rows,
                               const std::vector<std::vector<AdapterPlan>>& adapters, std::uint32_t seed)
    : columns_(columns), shapes_(parts) {
  std::mt19937 random(seed);
  std::int64_t total_out = 0;
  for (const PartShape& shape : parts) {
    weights_.push_back(random_weight(shape.out, columns, shape.spec, shape.arrangement, random));
    biases_.push_back(shape.bias ? random_vector(shape.out, 0.0F, 1.0F, random) : std::vector<float>{});
    card_biases_.push_back(shape.bias ? std::make_unique<OnCard<float>>(biases_.back()) : nullptr);
    total_out += shape.out;
  }
  rows_ = random_rows(rows, columns, random);

  std::vector<cuda::AdapterPart> table;
  for (const auto& plans : adapters) {
    std::vector<TestAdapterPart> slot;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const AdapterPlan& plan = plans[p];
      const std::int64_t out = parts[p].out;
      TestAdapterPart own;
      own.plan = plan;
      cuda::AdapterPart on_card{};
      cuda::AdapterPart bias_on_card{};
      const auto upload = [&](std::vector<float>& values, float mean) {
        values = random_vector(out, mean, 0.3F, random);
        own.vectors.push_back(std::make_unique<OnCard<float>>(values));
        return own.vectors.back()->data();
      };
      if (plan.rank > 0) {
        own.a = in_rows(plan.rank, columns, plan.a_storage, random);
        own.b = in_rows(out, plan.rank, plan.b_storage, random);
        on_card.a = own.a.card->data();
        on_card.b = own.b.card->data();
        on_card.rank = plan.rank;
        on_card.scale = plan.scale;
        on_card.a_storage = static_cast<std::uint8_t>(plan.a_storage);
        on_card.b_storage = static_cast<std::uint8_t>(plan.b_storage);
        if (plan.lora_bias) on_card.lora_bias = upload(own.lora_bias, 0.0F);
        if (plan.dora) on_card.row_scale = upload(own.row_scale, 1.0F);
        max_rank_ = std::max(max_rank_, plan.rank);
      }
      if (plan.replaced_weight) {
        own.replacement = in_rows(out, columns, plan.a_storage, random);
        on_card.replacement = own.replacement.card->data();
        on_card.replacement_storage = static_cast<std::uint8_t>(plan.a_storage);
      }
      if (plan.replaced_bias) bias_on_card.replacement = upload(own.bias, 0.0F);
      table.push_back(on_card);
      table.push_back(bias_on_card);
      slot.push_back(std::move(own));
    }
    adapters_.push_back(std::move(slot));
  }
  if (!table.empty()) table_ = std::make_unique<OnCard<cuda::AdapterPart>>(table);

  std::vector<cuda::StepRow> step_rows;
  for (int r = 0; r < rows; ++r) {
    request_scales_.push_back(r % 2 == 0 ? 1.0F : 0.75F);
    step_rows.push_back({1, 0, r, 0, slot_of(r), request_scales_.back()});
  }
  step_rows_ = std::make_unique<OnCard<cuda::StepRow>>(step_rows);
  z_ = std::make_unique<OnCard<float>>(static_cast<std::size_t>(rows * cuda::kMostProjectionParts * max_rank_));
  partial_sums_ = std::make_unique<OnCard<float>>(cuda::project_scratch_floats(rows, total_out));
  counters_ = std::make_unique<OnCard<std::uint32_t>>(
      std::vector<std::uint32_t>(cuda::project_scratch_counters(rows, total_out), 0));
}

cuda::Projection ProjectionCase::projection(int first, int count) const {
  cuda::Projection result;
  for (std::size_t p = 0; p < shapes_.size(); ++p) {
    cuda::ProjectionPart& part = result.parts[p];
    part.weight = weights_[p].device;
    part.place = static_cast<int>(2 * p);
    part.bias = card_biases_[p] ? card_biases_[p]->data() : nullptr;
    part.bias_place = static_cast<int>(2 * p + 1);
  }
  result.part_count = static_cast<int>(shapes_.size());
  result.x = {rows_.x->data() + first * cuda::prepared_stride(columns_), rows_.factors->data() + first};
  result.row_count = count;
  result.columns = columns_;
  result.rows = step_rows_->data() + first;
  if (table_) result.adapters = {table_->data(), static_cast<int>(2 * shapes_.size())};
  result.lora = z_->data();
  result.max_rank = max_rank_;
  result.partial_sums = partial_sums_->data();
  result.counters = counters_->data();
  return result;
}

std::vector<std::vector<float>> ProjectionCase::run(int first, int count, bool add) const {
  cuda::Projection arguments = projection(first, count);
  arguments.add = add;
  std::vector<std::unique_ptr<OnCard<float>>> y;
  for (std::size_t p = 0; p < shapes_.size(); ++p) {
    const auto size = static_cast<std::size_t>(count * shapes_[p].out);
    y.push_back(add ? std::make_unique<OnCard<float>>(std::vector<float>(size, 1.0F))
                    : std::make_unique<OnCard<float>>(size));
    arguments.parts[p].y = y.back()->data();
  }
  DUET_CUDA(cudaMemset(z_->data(), 0xFF, z_->buffer().size()));
  DUET_CUDA(cudaMemset(partial_sums_->data(), 0xFF, partial_sums_->buffer().size()));
  cuda::lora_shrink(arguments, nullptr);
  cuda::project(arguments, nullptr);
  DUET_CUDA(cudaDeviceSynchronize());
  std::vector<std::vector<float>> result;
  for (const auto& values : y) {
    EXPECT_TRUE(values->buffer().guards_intact());
    result.push_back(values->values());
  }
  EXPECT_TRUE(z_->buffer().guards_intact());
  EXPECT_TRUE(partial_sums_->buffer().guards_intact());
  EXPECT_TRUE(counters_->buffer().guards_intact());
  for (const std::uint32_t counter : counters_->values()) EXPECT_EQ(counter, 0U);
  return result;
}

std::vector<float> ProjectionCase::shrink(int first, int count) const {
  DUET_CUDA(cudaMemset(z_->data(), 0xFF, z_->buffer().size()));
  cuda::lora_shrink(projection(first, count), nullptr);
  DUET_CUDA(cudaDeviceSynchronize());
  EXPECT_TRUE(z_->buffer().guards_intact());
  std::vector<float> z = z_->values();
  z.resize(static_cast<std::size_t>(count * cuda::kMostProjectionParts * max_rank_));
  return z;
}

std::vector<ProjectionCase::Expected> ProjectionCase::expected(int count, bool add) const {
  std::vector<Expected> result;
  const double n = static_cast<double>(columns_);
  for (std::size_t p = 0; p < shapes_.size(); ++p) {
    const auto out = static_cast<std::size_t>(shapes_[p].out);
    // Dequantised once: matvec over float32 is matvec over the blocks.
    std::vector<float> numbers(out * static_cast<std::size_t>(columns_));
    dequantise(weights_[p].host, 0, numbers);
    const Matrix w =
        view_of(shapes_[p].out, columns_, {Storage::f32, 0, false}, reinterpret_cast<const std::byte*>(numbers.data()));
    const bool half_codes = shapes_[p].arrangement == cuda::Arrangement::tiles &&
                            is_quantised(shapes_[p].spec.storage) && shapes_[p].spec.storage != Storage::int8;
    Expected part;
    for (int r = 0; r < count; ++r) {
      const std::vector<float>& x = rows_.values[static_cast<std::size_t>(r)];
      const TestAdapterPart* adapter = slot_of(r) < 0 ? nullptr : &adapters_[static_cast<std::size_t>(slot_of(r))][p];
      const bool replaced = adapter != nullptr && adapter->plan.replaced_weight;
      std::vector<float> y(out);
      std::vector<double> magnitudes(out);
      plain::matvec(replaced ? adapter->replacement.host : w, x, y, magnitudes);
      std::vector<double> bounds(out);
      for (std::size_t o = 0; o < out; ++o)
        bounds[o] = magnitudes[o] * (n * kEps32 + (half_codes && !replaced ? 0x1p-11 : 0.0));
      if (adapter != nullptr && adapter->plan.rank > 0) {
        const double scale = double{adapter->plan.scale} * request_scales_[static_cast<std::size_t>(r)];
        plain::add_lora(adapter->a.host, adapter->b.host, adapter->lora_bias, scale, x, y);
        std::vector<float> absolute(x);
        for (float& value : absolute) value = std::abs(value);
        std::vector<float> size(out, 0.0F);
        const Magnitudes a = magnitudes_of(adapter->a.host);
        const Magnitudes b = magnitudes_of(adapter->b.host);
        plain::add_lora(a.matrix, b.matrix, {}, scale, absolute, size);
        // z: n products, of f32 adapters to 22 bits; B z: rank products; of many rows z to 22 bits too.
        for (std::size_t o = 0; o < out; ++o) bounds[o] += size[o] * ((n + adapter->plan.rank) * kEps32 + 2 * 0x1p-21);
      }
      for (std::size_t o = 0; o < out; ++o) {
        double value = y[o];
        const double before = std::abs(value);
        if (adapter != nullptr && !adapter->row_scale.empty()) {
          value *= adapter->row_scale[o];
          bounds[o] *= std::abs(adapter->row_scale[o]);
        }
        if (adapter != nullptr && !adapter->bias.empty()) {
          value += adapter->bias[o];
        } else if (!biases_[p].empty()) {
          value += biases_[p][o];
        }
        if (add) value += 1.0;
        // A handful of roundings of values no larger than these.
        bounds[o] += 8 * kEps32 * (before + std::abs(value) + 2.0);
        part.y.push_back(static_cast<float>(value));
        part.bounds.push_back(bounds[o]);
      }
    }
    result.push_back(std::move(part));
  }
  return result;
}

ProjectionCase::Expected ProjectionCase::expected_z(int count) const {
  Expected result;
  const auto row_size = static_cast<std::size_t>(cuda::kMostProjectionParts * max_rank_);
  result.y.assign(static_cast<std::size_t>(count) * row_size, std::numeric_limits<float>::quiet_NaN());
  result.bounds.assign(result.y.size(), 0.0);
  for (int r = 0; r < count; ++r) {
    if (slot_of(r) < 0) continue;
    for (std::size_t p = 0; p < shapes_.size(); ++p) {
      const TestAdapterPart& adapter = adapters_[static_cast<std::size_t>(slot_of(r))][p];
      const auto rank = static_cast<std::size_t>(adapter.plan.rank);
      std::vector<float> z(rank);
      std::vector<double> magnitudes(rank);
      if (rank == 0) continue;
      plain::matvec(adapter.a.host, rows_.values[static_cast<std::size_t>(r)], z, magnitudes);
      const std::size_t first = static_cast<std::size_t>(r) * row_size + p * static_cast<std::size_t>(max_rank_);
      for (std::size_t i = 0; i < rank; ++i) {
        result.y[first + i] = z[i];
        result.bounds[first + i] = magnitudes[i] * (static_cast<double>(columns_) * kEps32 +
                                                    (adapter.plan.a_storage == Storage::f32 ? 0x1p-21 : 0.0)) +
                                   kEps32 * std::abs(z[i]);
      }
    }
  }
  return result;
}

}  // namespace duet::test
