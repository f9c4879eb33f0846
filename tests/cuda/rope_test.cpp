#include <fmt/format.h>

#include <limits>

#include "cuda/launch.h"
#include "duet/error.h"
#include "engine/host/host_math.h"
#include "tests/cuda/paged_kv.h"
#include "tests/support/compare.h"

namespace duet::test {
namespace {

using cuda::KvType;

struct Shape {
  KvType type;
  int head_size;
  int query_heads;
  int kv_heads;
  int tokens_per_page;
  bool norms = false;
  int inverse_frequency_period = 10000;
};

std::vector<float> random_vector(std::size_t count, float size, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0F, size);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

/// One launch and what it was given. Row i is the newest token of sequence i.
struct Step {
  Step(const Shape& shape, const std::vector<std::int64_t>& positions, std::mt19937& random)
      : head_size(static_cast<std::size_t>(shape.head_size)), pages(pool_of(shape), lengths_of(positions), random) {
    for (std::size_t i = 0; i < positions.size(); ++i)
      rows.push_back({1, 0, static_cast<std::int32_t>(positions[i]), pages.first_pages[i], -1, 1.0F});
    query = random_vector(rows.size() * static_cast<std::size_t>(shape.query_heads) * head_size, 2.0F, random);
    key = random_vector(rows.size() * static_cast<std::size_t>(shape.kv_heads) * head_size, 2.0F, random);
    value = random_vector(key.size(), 2.0F, random);
    for (std::size_t i = 0; i < head_size / 2; ++i)
      frequencies.push_back(static_cast<float>(
          std::pow(shape.inverse_frequency_period, -2.0 * static_cast<double>(i) / static_cast<double>(head_size))));
    if (shape.norms) {
      query_norm = random_vector(head_size, 1.0F, random);
      key_norm = random_vector(head_size, 1.0F, random);
    }
    query_heads = shape.query_heads;
  }

  static cuda::KvPool pool_of(const Shape& shape) {
    return {nullptr, 0, shape.tokens_per_page, 3, shape.kv_heads, shape.head_size, shape.type};
  }
  static std::vector<std::int64_t> lengths_of(const std::vector<std::int64_t>& positions) {
    std::vector<std::int64_t> lengths;
    for (const std::int64_t position : positions) lengths.push_back(position + 1);
    return lengths;
  }

  /// Runs on the card; the results replace query, card_bytes and bad_layer.
  void run() {
    const PoisonedBuffer card_query = on_card(query);
    const PoisonedBuffer card_key = on_card(key);
    const PoisonedBuffer card_value = on_card(value);
    const PoisonedBuffer card_rows = on_card(rows);
    const PoisonedBuffer card_frequencies = on_card(frequencies);
    const PoisonedBuffer card_query_norm = on_card(query_norm);
    const PoisonedBuffer card_key_norm = on_card(key_norm);
    const PoisonedBuffer card_replacement = on_card(replacement);
    const PoisonedBuffer card_pages = on_card(pages.pages);
    const PoisonedBuffer card_pool = on_card(pages.bytes);
    bad_layer.assign(rows.size(), cuda::kNoBadLayer);
    const PoisonedBuffer card_bad = on_card(bad_layer);
    std::vector<cuda::AdapterPart> parts(4);  // 2 slots of 2 places: slot 1 replaces the norm at place 1 (the keys')
    parts[3].replacement = card_replacement.data();
    const PoisonedBuffer card_parts = on_card(parts);

    cuda::RopeAppend a;
    a.query = reinterpret_cast<float*>(card_query.data());
    a.key = reinterpret_cast<const float*>(card_key.data());
    a.value = reinterpret_cast<const float*>(card_value.data());
    a.row_count = static_cast<int>(rows.size());
    a.query_heads = query_heads;
    a.rows = reinterpret_cast<const cuda::StepRow*>(card_rows.data());
    a.inverse_frequencies = reinterpret_cast<const float*>(card_frequencies.data());
    a.attention_factor = attention_factor;
    if (!query_norm.empty()) {
      a.query_norm = reinterpret_cast<const float*>(card_query_norm.data());
      a.key_norm = reinterpret_cast<const float*>(card_key_norm.data());
      a.query_norm_place = 0;
      a.key_norm_place = 1;
      a.norm_epsilon = kEpsilon;
    }
    if (!replacement.empty()) a.adapters = {reinterpret_cast<const cuda::AdapterPart*>(card_parts.data()), 2};
    a.kv = pages.kv;
    a.kv.pool = card_pool.data();
    a.pages = reinterpret_cast<const std::int32_t*>(card_pages.data());
    a.layer = kLayer;
    a.marks = {reinterpret_cast<std::int32_t*>(card_bad.data()), kLayer};
    cuda::rope_append(a, nullptr);
    DUET_CUDA(cudaDeviceSynchronize());
    card_query.download(query.data());
    card_bad.download(bad_layer.data());
    card_bytes = from_card<std::byte>(card_pool);
    for (const PoisonedBuffer* buffer : {&card_query, &card_key, &card_value, &card_pool, &card_bad})
      EXPECT_TRUE(buffer->guards_intact());
  }

  static constexpr int kLayer = 1;
  static constexpr double kEpsilon = 1e-6;
  std::size_t head_size;
  int query_heads = 0;
  PagedKv pages;
  std::vector<cuda::StepRow> rows;
  std::vector<float> query, key, value, frequencies, query_norm, key_norm, replacement;
  float attention_factor = 1.0F;
  std::vector<std::byte> card_bytes;
  std::vector<std::int32_t> bad_layer;
};

/// norm and rotation by the oracle, and how far float32 may be from it, element by element.
struct Expected {
  std::vector<float> x;
  std::vector<double> bounds;
};

Expected turned(std::span<const float> x, std::span<const float> gamma, const Step& step, std::int64_t position) {
  Expected expected{{x.begin(), x.end()}, std::vector<double>(x.size())};
  if (!gamma.empty()) plain::rms_norm(x, gamma, Step::kEpsilon, expected.x);
  const std::size_t half = x.size() / 2;
  std::vector<float> cosine(half);
  std::vector<float> sine(half);
  plain::rotary(step.frequencies, position, double{step.attention_factor}, cosine, sine);
  // Norm: half the squares' 12 roundings, sqrt, 1/x and two products: 10 in all. Rotation: 2 ulp of the sine, the
  // factor, the product and the sum, and as many in float32 on the oracle's side: 8. Relative to |x[i]| + |x[i + half]|
  // times the factor.
  for (std::size_t i = 0; i < half; ++i) {
    const double size = (std::abs(expected.x[i]) + std::abs(expected.x[i + half])) * double{step.attention_factor};
    expected.bounds[i] = expected.bounds[i + half] = size * (gamma.empty() ? 8 : 18) * 0x1p-24;
  }
  plain::rotate(expected.x, cosine, sine);
  return expected;
}

/// Half a unit of the KV type at x (f16 and bf16), or half a step of the head's scale (int8).
double rounding_of(KvType type, double x, double absmax) {
  if (type == KvType::f16) return std::max(std::abs(x) * 0x1p-11, 0x1p-25);
  if (type == KvType::bf16) return std::abs(x) * 0x1p-8;
  return absmax / 127.0 * 0.5001;
}

std::span<const float> head_of(const std::vector<float>& x, std::size_t number, std::size_t head_size) {
  return std::span(x).subspan(number * head_size, head_size);
}

/// Reads a head back from the card's bytes.
std::vector<float> stored(Step& step, std::size_t row, bool is_value, int kv_head) {
  const cuda::KvPool& kv = step.pages.kv;
  const std::int64_t position = step.rows[row].position;
  const std::byte* page = step.card_bytes.data() + (step.pages.page_of(row, position) - step.pages.bytes.data());
  const std::size_t vector = step.pages.vector_in_page(Step::kLayer, is_value, kv_head, position);
  std::vector<float> x(step.head_size);
  float scale = 0;
  std::memcpy(&scale, page + scales_offset(kv) + vector * 4, 4);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t at = vector * step.head_size + i;
    std::uint16_t bits = 0;
    if (kv.type == KvType::int8) {
      x[i] = static_cast<float>(static_cast<std::int8_t>(page[at])) * scale;
      continue;
    }
    std::memcpy(&bits, page + at * 2, 2);
    x[i] = kv.type == KvType::f16 ? to_float(Half{bits}) : to_float(Bfloat16{bits});
  }
  return x;
}

/// Bytes of the pool that the step may have written.
std::vector<char> written_of(Step& step) {
  const cuda::KvPool& kv = step.pages.kv;
  const std::size_t element = kv.type == KvType::int8 ? 1 : 2;
  std::vector<char> written(step.pages.bytes.size(), 0);
  for (std::size_t row = 0; row < step.rows.size(); ++row) {
    if (step.rows[row].active == 0) continue;
    const std::int64_t position = step.rows[row].position;
    const auto page = static_cast<std::size_t>(step.pages.page_of(row, position) - step.pages.bytes.data());
    for (int head = 0; head < kv.kv_heads; ++head)
      for (const bool is_value : {false, true}) {
        const std::size_t vector = step.pages.vector_in_page(Step::kLayer, is_value, head, position);
        std::fill_n(written.begin() + static_cast<std::ptrdiff_t>(page + vector * step.head_size * element),
                    step.head_size * element, char{1});
        if (kv.type == KvType::int8)
          std::fill_n(written.begin() + static_cast<std::ptrdiff_t>(page + scales_offset(kv) + vector * 4), 4, char{1});
      }
  }
  return written;
}

void check(Step& step, const std::string& what) {
  const Step before = step;
  step.run();
  const std::vector<char> written = written_of(step);
  std::size_t strays = 0;
  for (std::size_t i = 0; i < written.size(); ++i)
    if (written[i] == 0 && step.card_bytes[i] != before.pages.bytes[i]) ++strays;
  EXPECT_EQ(strays, 0U) << what;

  const auto heads = static_cast<std::size_t>(step.query_heads);
  const auto kv_heads = static_cast<std::size_t>(step.pages.kv.kv_heads);
  for (std::size_t row = 0; row < step.rows.size(); ++row) {
    EXPECT_EQ(step.bad_layer[row], cuda::kNoBadLayer) << what;
    if (step.rows[row].active == 0) continue;
    const std::int64_t position = step.rows[row].position;
    const bool replaced = !step.replacement.empty() && step.rows[row].adapter_slot == 1;
    for (std::size_t head = 0; head < heads; ++head) {
      const std::size_t number = row * heads + head;
      const Expected q = turned(head_of(before.query, number, step.head_size), step.query_norm, step, position);
      ASSERT_TRUE(all_within(head_of(step.query, number, step.head_size), q.x, q.bounds)) << what << " row " << row;
    }
    for (std::size_t head = 0; head < kv_heads; ++head) {
      const std::size_t number = row * kv_heads + head;
      Expected k = turned(head_of(before.key, number, step.head_size), replaced ? step.replacement : step.key_norm,
                          step, position);
      double absmax = 0;
      for (const float x : k.x) absmax = std::max(absmax, std::abs(double{x}));
      for (std::size_t i = 0; i < k.x.size(); ++i) k.bounds[i] += rounding_of(step.pages.kv.type, k.x[i], absmax);
      ASSERT_TRUE(all_within(stored(step, row, false, static_cast<int>(head)), k.x, k.bounds))
          << what << " row " << row;
      // Values are only rounded: bit for bit what the host's conversion gives.
      step.pages.set(row, Step::kLayer, true, static_cast<int>(head), position,
                     head_of(before.value, number, step.head_size));
      const std::vector<float> got = stored(step, row, true, static_cast<int>(head));
      const float* want = step.pages.view(row).value(Step::kLayer, static_cast<int>(head), position);
      ASSERT_TRUE(same_bits(got, std::span(want, got.size()))) << what << " row " << row;
    }
  }
}

const std::vector<std::int64_t> kPositions = {0, 1, 15, 16, 36, 37, 200, 511};
const std::vector<KvType> kTypes = {KvType::f16, KvType::bf16, KvType::int8};

TEST(CudaRope, MatchesTheOracleForEveryKvTypeAndHeadSize) {
  DUET_NEEDS_GPU();
  std::mt19937 random(20261202);
  for (const KvType type : kTypes)
    for (const int head_size : {8, 16, 24, 32, 64, 80, 96, 128, 136, 256})
      for (const bool norms : {false, true}) {
        Step step({type, head_size, 6, 2, head_size % 3 == 0 ? 37 : 16, norms}, kPositions, random);
        step.rows[2].active = 0;
        check(step, fmt::format("{} head size {} norms {}", name_of(type), head_size, norms));
      }
}

TEST(CudaRope, UsesTheRowsAdapterAndTheAttentionFactor) {
  DUET_NEEDS_GPU();
  std::mt19937 random(20261203);
  Step step({KvType::f16, 64, 4, 4, 16, true, 1000000}, kPositions, random);
  step.replacement = random_vector(64, 1.0F, random);
  step.attention_factor = 1.25F;
  for (std::size_t row = 0; row < step.rows.size(); ++row)
    step.rows[row].adapter_slot = static_cast<std::int32_t>(row % 3) - 1;
  check(step, "adapters");
}

TEST(CudaRope, TurnsFarPositionsAsExactlyAsNearOnes) {
  DUET_NEEDS_GPU();
  std::mt19937 random(20261212);
  Step step({KvType::bf16, 32, 2, 1, 64, false, 1000000}, {4095, 32767, 131071, 262143}, random);
  check(step, "far positions");
}

TEST(CudaRope, SameBitsAloneAndInABatchAndTwice) {
  DUET_NEEDS_GPU();
  std::mt19937 random(20261204);
  for (const KvType type : kTypes) {
    const Step step({type, 128, 12, 2, 37, true}, kPositions, random);
    Step batch = step;
    batch.run();
    Step again = step;
    again.run();
    ASSERT_TRUE(same_bits(batch.query, again.query));
    ASSERT_TRUE(batch.card_bytes == again.card_bytes);
    Step alone = step;
    for (std::size_t row = 0; row < alone.rows.size(); ++row) alone.rows[row].active = row == 4 ? 1 : 0;
    alone.run();
    ASSERT_TRUE(same_bits(head_of(batch.query, 4, 12 * 128), head_of(alone.query, 4, 12 * 128)));
    for (int head = 0; head < 2; ++head)
      for (const bool is_value : {false, true})
        ASSERT_TRUE(same_bits(stored(batch, 4, is_value, head), stored(alone, 4, is_value, head)));
  }
}

TEST(CudaRope, MarksRowsWhoseNumbersAreNotFiniteOrDoNotFit) {
  DUET_NEEDS_GPU();
  std::mt19937 random(20261205);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const KvType type : kTypes) {
    Step step({type, 80, 4, 2, 16, false}, std::vector<std::int64_t>(10, 0), random);
    step.rows[9].active = 0;
    const std::size_t row_of_keys = 2 * 80;
    step.key[1 * row_of_keys + 79] = nan;
    step.key[2 * row_of_keys + 3] = -infinity;
    step.value[3 * row_of_keys + 159] = nan;
    step.value[4 * row_of_keys] = infinity;
    step.value[5 * row_of_keys + 40] = 65519.9F;   // the last that rounds to 65,504 in f16
    step.value[6 * row_of_keys + 40] = -65520.0F;  // the first that does not
    step.value[7 * row_of_keys + 1] = 3.4e38F;     // beyond the largest bfloat16
    step.query[8 * 4 * 80 + 200] = nan;
    step.key[9 * row_of_keys] = nan;
    step.run();
    const bool f16 = type == KvType::f16;
    const std::int32_t none = cuda::kNoBadLayer;
    const std::int32_t bad = Step::kLayer;
    const std::vector<std::int32_t> want = {
        none, bad, bad, bad, bad, none, f16 ? bad : none, type == KvType::int8 ? none : bad, bad, none};
    EXPECT_EQ(step.bad_layer, want) << name_of(type);
  }
}

TEST(CudaRope, RefusesHeadsItHasNoKernelFor) {
  cuda::RopeAppend a;
  a.kv = {nullptr, 1024, 16, 1, 2, 20, KvType::f16};
  a.query_heads = 4;
  a.row_count = 1;
  EXPECT_THROW(cuda::rope_append(a, nullptr), Error);
  a.kv.head_size = 16;
  a.query_heads = 5;
  EXPECT_THROW(cuda::rope_append(a, nullptr), Error);
}

}  // namespace
}  // namespace duet::test
