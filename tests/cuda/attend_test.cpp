#include <fmt/format.h>

#include "cuda/launch.h"
#include "engine/host/host_math.h"
#include "tests/cuda/paged_kv.h"
#include "tests/support/compare.h"

namespace duet::test {
namespace {

using cuda::KvType;

constexpr int kLayer = 1;
const std::vector<KvType> kTypes = {KvType::f16, KvType::bf16, KvType::int8};

cuda::KvPool pool_of(KvType type, int head_size, int kv_heads, int tokens_per_page) {
  return {nullptr, 0, tokens_per_page, 2, kv_heads, head_size, type};
}

/// Rows of queries over pages. Decode: row i is the newest token of sequence i. Prefill: rows are neighbours of
/// one sequence.
struct Problem {
  PagedKv pages;
  int query_heads = 0;
  int window = 0;
  std::int64_t max_context = 0;
  std::vector<cuda::StepRow> rows;
  std::vector<float> query;

  std::size_t row_size() const {
    return static_cast<std::size_t>(query_heads) * static_cast<std::size_t>(pages.kv.head_size);
  }
  std::size_t sequence_of(std::size_t row) const {
    const auto& first = pages.first_pages;
    const auto found = std::find(first.begin(), first.end(), rows[row].first_page);
    return static_cast<std::size_t>(found - first.begin());
  }
  double scale() const { return 1.0 / std::sqrt(static_cast<double>(pages.kv.head_size)); }
  std::int64_t first_seen(std::size_t row) const {
    return window == 0 ? 0 : std::max<std::int64_t>(0, rows[row].position - window + 1);
  }
};

void random_query(Problem& problem, float size, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0F, size);
  problem.query.resize(problem.rows.size() * problem.row_size());
  for (float& x : problem.query) x = normal(random);
}

/// Sequences of `lengths` tokens, the newest of each a row; everything no row may read stays NaN.
Problem decode_problem(const cuda::KvPool& shape, int sharing, int window, const std::vector<std::int64_t>& lengths,
                       std::mt19937& random, float size = 1.5F) {
  Problem problem{PagedKv(shape, lengths, random), sharing * shape.kv_heads, window, 0, {}, {}};
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    problem.rows.push_back({1, 0, static_cast<std::int32_t>(lengths[i] - 1), problem.pages.first_pages[i], -1, 1.0F});
    problem.max_context = std::max(problem.max_context, lengths[i]);
    problem.pages.fill(i, kLayer, problem.first_seen(i), lengths[i], size, random);
  }
  random_query(problem, size, random);
  return problem;
}

/// The last `count` tokens of a sequence, behind `cached` ones; everything no row may read stays NaN.
Problem prefill_problem(const cuda::KvPool& shape, int sharing, int window, std::int64_t cached, int count,
                        std::mt19937& random) {
  constexpr float kSize = 1.5F;
  const std::int64_t length = cached + count;
  Problem problem{PagedKv(shape, {5, length}, random), sharing * shape.kv_heads, window, length, {}, {}};
  for (std::int64_t position = cached; position < length; ++position)
    problem.rows.push_back({1, 0, static_cast<std::int32_t>(position), problem.pages.first_pages[1], -1, 1.0F});
  problem.pages.fill(1, kLayer, problem.first_seen(0), length, kSize, random);
  random_query(problem, kSize, random);
  return problem;
}

enum class Kernel { decode, prefill };

/// Prefill takes its rows `slice_rows` at a time: as many as its scratch is for.
std::vector<float> attend(Problem& problem, Kernel kernel, int slice_rows = 8) {
  const PoisonedBuffer pool = on_card(problem.pages.bytes);
  const PoisonedBuffer pages = on_card(problem.pages.pages);
  const PoisonedBuffer rows = on_card(problem.rows);
  const PoisonedBuffer query = on_card(problem.query);
  const PoisonedBuffer out(problem.query.size() * sizeof(float));
  const auto row_count = static_cast<int>(problem.rows.size());
  const cuda::KvPool& kv = problem.pages.kv;
  const int scratch_rows = kernel == Kernel::decode ? row_count : slice_rows;
  const PoisonedBuffer partial(sizeof(float) * cuda::attend_scratch_floats(scratch_rows, problem.query_heads,
                                                                           kv.head_size, problem.max_context));
  const std::vector<std::uint32_t> zeros(cuda::attend_scratch_counters(scratch_rows, kv.kv_heads), 0);
  const PoisonedBuffer counters = on_card(zeros);

  cuda::Attention a;
  a.query = reinterpret_cast<const float*>(query.data());
  a.out = reinterpret_cast<float*>(out.data());
  a.row_count = row_count;
  a.query_heads = problem.query_heads;
  a.rows = reinterpret_cast<const cuda::StepRow*>(rows.data());
  a.kv = kv;
  a.kv.pool = pool.data();
  a.pages = reinterpret_cast<const std::int32_t*>(pages.data());
  a.layer = kLayer;
  a.window_tokens = problem.window;
  a.scale = static_cast<float>(problem.scale());
  a.max_context_tokens = problem.max_context;
  a.scratch_rows = scratch_rows;
  a.partial = reinterpret_cast<float*>(partial.data());
  a.counters = reinterpret_cast<std::uint32_t*>(counters.data());
  if (kernel == Kernel::decode)
    cuda::attend_decode(a, nullptr);
  else
    cuda::attend_prefill(a, problem.rows[0].position, nullptr);
  DUET_CUDA(cudaDeviceSynchronize());
  EXPECT_TRUE(from_card<std::uint32_t>(counters) == zeros);
  for (const PoisonedBuffer* buffer : {&pool, &pages, &rows, &query, &out, &partial, &counters})
    EXPECT_TRUE(buffer->guards_intact());
  return from_card<float>(out);
}

/// The oracle's answer for one head of a row and how far the kernels may be from it.
struct Expected {
  std::vector<float> out;
  std::vector<double> bounds;
  double score_error = 0;  ///< Of the largest score, base e.
};

/// Bounds as the decode kernel's header derives them; a row of a prefill is a decode row. With s the largest
/// scale * sum |q k|, scores are off by
///   d = s * ((head_size + 8) * 2^-23 + 2^-16 with bf16 operands)
/// so weights by a factor exp(+-2 d); weights are held to `weight_error` and added in `sums` rounded steps.
Expected expected(Problem& problem, std::size_t row, int head) {
  const KvView view = problem.pages.view(problem.sequence_of(row));
  const int kv_head = head / (problem.query_heads / problem.pages.kv.kv_heads);
  const auto size = static_cast<std::size_t>(view.head_size);
  const std::span<const float> q =
      std::span(problem.query).subspan(row * problem.row_size() + static_cast<std::size_t>(head) * size, size);
  const std::int64_t first = problem.first_seen(row);
  const std::int64_t last = problem.rows[row].position + 1;
  Expected result{std::vector<float>(size), std::vector<double>(size, 0.0)};
  plain::attend(q, view, kLayer, kv_head, first, last, problem.scale(), result.out);

  std::vector<double> scores;
  double largest_product = 0;
  double maximum = -1e300;
  for (std::int64_t p = first; p < last; ++p) {
    const float* key = view.key(kLayer, kv_head, p);
    double score = 0;
    double magnitude = 0;
    for (std::size_t i = 0; i < size; ++i) {
      score += double{q[i]} * key[i];
      magnitude += std::abs(double{q[i]} * key[i]);
    }
    scores.push_back(score * problem.scale());
    maximum = std::max(maximum, scores.back());
    largest_product = std::max(largest_product, magnitude * problem.scale());
  }
  const bool bf16 = problem.pages.kv.type == KvType::bf16;
  const double d = largest_product * ((static_cast<double>(size) + 8) * 0x1p-23 + (bf16 ? 0x1p-16 : 0.0));
  result.score_error = d;
  const double tokens = static_cast<double>(last - first);
  const double sums = 24 + 2 * std::sqrt(tokens / 128);
  const double weight_error = bf16 ? 0x1p-16 : 0x1p-22;
  const double relative = std::expm1(2 * d) + weight_error + sums * 0x1p-23;
  double total = 0;
  for (double& score : scores) total += score = std::exp(score - maximum);
  for (std::int64_t p = first; p < last; ++p)
    for (std::size_t i = 0; i < size; ++i)
      result.bounds[i] += relative * scores[static_cast<std::size_t>(p - first)] / total *
                          std::abs(double{view.value(kLayer, kv_head, p)[i]});
  return result;
}

/// Every active row against the oracle; inactive rows are zero.
void check(Problem& problem, Kernel kernel, const std::string& what) {
  const std::vector<float> out = attend(problem, kernel);
  const auto size = static_cast<std::size_t>(problem.pages.kv.head_size);
  double worst = 0;
  for (std::size_t row = 0; row < problem.rows.size(); ++row)
    for (int head = 0; head < problem.query_heads; ++head) {
      const std::span<const float> got =
          std::span(out).subspan(row * problem.row_size() + static_cast<std::size_t>(head) * size, size);
      if (problem.rows[row].active == 0) {
        ASSERT_TRUE(same_bits(got, std::vector<float>(size, 0.0F))) << what;
        continue;
      }
      const Expected want = expected(problem, row, head);
      ASSERT_TRUE(all_within(got, want.out, want.bounds))
          << what << " row " << row << " at " << problem.rows[row].position << " head " << head;
      for (std::size_t i = 0; i < size; ++i)
        worst = std::max(worst, std::abs(double{got[i]} - want.out[i]) / want.bounds[i]);
    }
  if (std::getenv("DUET_PRINT_ERRORS") != nullptr) fmt::print("{}: worst error {:.3f} of the bound\n", what, worst);
}

std::span<const float> row_of(const Problem& problem, const std::vector<float>& out, std::size_t row) {
  return std::span(out).subspan(row * problem.row_size(), problem.row_size());
}

// ---- decode ----

const std::vector<std::int64_t> kLengths = {1, 2, 15, 16, 17, 1000, 127, 128, 129, 255, 256, 257};

TEST(CudaAttendDecode, MatchesTheOracleForEveryHeadSizeKvTypeAndSharing) {
  DUET_NEEDS_GPU();
  std::mt19937 random(20261206);
  int sharing = 1;
  for (const KvType type : kTypes)
    for (const int head_size : {8, 16, 24, 32, 64, 80, 96, 128, 136, 256}) {
      Problem problem =
          decode_problem(pool_of(type, head_size, 2, head_size % 3 == 0 ? 16 : 37), sharing, 0, kLengths, random);
      problem.rows[3].active = 0;
      check(problem, Kernel::decode, fmt::format("{} head size {} sharing {}", name_of(type), head_size, sharing));
      sharing = sharing % 16 + 1;
    }
}

TEST(CudaAttendDecode, SeesItsWindowAlone) {
  DUET_NEEDS_GPU();
  std::mt19937 random(20261207);
  for (const KvType type : kTypes)
    for (const int window : {1, 7, 64, 4096}) {
      Problem problem = decode_problem(pool_of(type, 64, 1, 37), 4, window, {1, 7, 8, 128, 129, 1000, 8200}, random);
      check(problem, Kernel::decode, fmt::format("{} window {}", name_of(type), window));
    }
}

TEST(CudaAttendDecode, MergesManySplits) {
  DUET_NEEDS_GPU();
  std::mt19937 random(20261208);
  for (const auto& [type, length, sharing] :
       {std::tuple{KvType::f16, std::int64_t{33000}, 6}, {KvType::bf16, 8200, 12}, {KvType::int8, 8200, 6}}) {
    Problem problem = decode_problem(pool_of(type, 128, 2, 37), sharing, 0, {length, 2048, 2049, 100}, random);
    check(problem, Kernel::decode, fmt::format("{} length {}", name_of(type), length));
  }
}

TEST(CudaAttendDecode, SameBitsAloneInABatchTwiceAndWhateverTheGrid) {
  DUET_NEEDS_GPU();
  std::mt19937 random(20261209);
  for (const KvType type : kTypes) {
    std::vector<std::int64_t> lengths = {5000, 1, 129, 700, 2500, 128};
    while (lengths.size() < 40) lengths.push_back(1 + static_cast<std::int64_t>(random() % 300));
    Problem batch = decode_problem(pool_of(type, 96, 2, 37), 6, 0, lengths, random);
    batch.rows[1].active = 0;
    const std::vector<float> first = attend(batch, Kernel::decode);
    ASSERT_TRUE(same_bits(first, attend(batch, Kernel::decode)));
    batch.max_context = 40000;
    ASSERT_TRUE(same_bits(first, attend(batch, Kernel::decode)));
    for (const std::size_t row : {0U, 2U, 3U, 4U, 37U}) {
      Problem alone = batch;
      alone.rows = {batch.rows[row]};
      const auto query = row_of(batch, batch.query, row);
      alone.query.assign(query.begin(), query.end());
      alone.max_context = lengths[row];
      ASSERT_TRUE(same_bits(attend(alone, Kernel::decode), row_of(batch, first, row))) << "row " << row;
    }
  }
}

// ---- prefill ----

TEST(CudaAttendPrefill, MatchesTheOracleForRandomShapes) {
  DUET_NEEDS_GPU();
  std::mt19937 random(20261212);
  const auto one_of = [&](const std::vector<int>& all) { return all[random() % all.size()]; };
  for (const KvType type : kTypes)
    for (const int head_size : {32, 64, 80, 96, 128, 256})
      for (int round = 0; round < 4; ++round) {
        const int kv_heads = one_of({1, 2, 3});
        const int sharing = one_of({1, 2, 4, 7, 8, 9, 16});
        const int window = one_of({0, 0, 5, 40, 128});
        const int cached = one_of({0, 1, 15, 127, 128, 129, static_cast<int>(random() % 500)});
        const int count = one_of({1, 2, 8, 9, 17, 33});
        const int tokens_per_page = one_of({1, 16, 37, 128});
        Problem problem = prefill_problem(pool_of(type, head_size, kv_heads, tokens_per_page), sharing, window, cached,
                                          count, random);
        check(problem, Kernel::prefill,
              fmt::format("{} head size {}, {} KV heads of {}, window {}, {} new behind {}, {} tokens a page",
                          name_of(type), head_size, kv_heads, sharing, window, count, cached, tokens_per_page));
      }
}

/// Windows that end inside the chunk, at its beginning, and in the prefix.
TEST(CudaAttendPrefill, SeesItsWindowAlone) {
  DUET_NEEDS_GPU();
  std::mt19937 random(20261213);
  for (const KvType type : kTypes)
    for (const int window : {1, 7, 64, 4096})
      for (const int cached : {0, 6, 7, 600}) {
        Problem problem = prefill_problem(pool_of(type, 64, 1, 37), 4, window, cached, 20, random);
        check(problem, Kernel::prefill, fmt::format("{} window {} behind {}", name_of(type), window, cached));
      }
}

TEST(CudaAttendPrefill, SameBitsHoweverThePromptIsCut) {
  DUET_NEEDS_GPU();
  std::mt19937 random(20261214);
  for (const KvType type : kTypes)
    for (const int window : {0, 50}) {
      Problem whole = prefill_problem(pool_of(type, 96, 2, 37), 6, window, 120, 40, random);
      const std::vector<float> out = attend(whole, Kernel::prefill);
      for (const int slice_rows : {1, 7, 64})
        ASSERT_TRUE(same_bits(attend(whole, Kernel::prefill, slice_rows), out)) << slice_rows;
      for (const auto& cut : {std::pair<std::size_t, std::size_t>{0, 1}, {0, 13}, {13, 40}, {39, 40}}) {
        const auto part = [&](const std::vector<float>& all) {
          return std::span(all).subspan(cut.first * whole.row_size(), (cut.second - cut.first) * whole.row_size());
        };
        Problem chunk = whole;
        chunk.rows.assign(whole.rows.begin() + static_cast<std::ptrdiff_t>(cut.first),
                          whole.rows.begin() + static_cast<std::ptrdiff_t>(cut.second));
        chunk.query.assign(part(whole.query).begin(), part(whole.query).end());
        ASSERT_TRUE(same_bits(attend(chunk, Kernel::prefill), part(out))) << cut.first << " to " << cut.second;
      }
    }
}

// ---- both ----

/// O-10: q . k is beyond f16 before it is scaled.
void check_that_one_key_takes_all(Kernel kernel) {
  std::mt19937 random(20261210);
  for (const KvType type : kTypes) {
    Problem problem = decode_problem(pool_of(type, 16, 1, 16), 4, 0, {2}, random);
    std::vector<float> key(16, 80.0F);
    problem.pages.set(0, kLayer, false, 0, 0, key);
    problem.pages.set(0, kLayer, false, 0, 1, std::vector<float>(16, 0.0F));
    std::fill(problem.query.begin(), problem.query.end(), 80.0F);
    const std::vector<float> out = attend(problem, kernel);
    const float* value = problem.pages.view(0).value(kLayer, 0, 0);
    for (std::size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], value[i % 16], std::abs(value[i % 16]) * 0x1p-20);
  }
}

TEST(CudaAttendDecode, OneKeyTakesAllWhereProductsAreBeyondF16) {
  DUET_NEEDS_GPU();
  check_that_one_key_takes_all(Kernel::decode);
}

TEST(CudaAttendPrefill, OneKeyTakesAllWhereProductsAreBeyondF16) {
  DUET_NEEDS_GPU();
  check_that_one_key_takes_all(Kernel::prefill);
}

/// Queries and keys of size 1e4: scores of 1e9. Where the largest leads by more than float32 can err, its value is the
/// answer.
void check_huge_scores(Kernel kernel) {
  std::mt19937 random(20261211);
  for (const KvType type : kTypes) {
    Problem problem = decode_problem(pool_of(type, 64, 2, 37), 6, 0, {900}, random, 1e4F);
    const std::vector<float> out = attend(problem, kernel);
    int clear = 0;
    for (int head = 0; head < problem.query_heads; ++head) {
      const KvView view = problem.pages.view(0);
      std::vector<std::pair<double, std::int64_t>> scores;
      for (std::int64_t p = 0; p < 900; ++p) {
        double score = 0;
        for (int i = 0; i < 64; ++i)
          score += double{problem.query[static_cast<std::size_t>(head * 64 + i)]} * view.key(kLayer, head / 6, p)[i];
        scores.emplace_back(score * problem.scale(), p);
      }
      std::sort(scores.rbegin(), scores.rend());
      const Expected want = expected(problem, 0, head);
      const std::span<const float> got = std::span(out).subspan(static_cast<std::size_t>(head) * 64, 64);
      for (const float x : got) ASSERT_TRUE(std::isfinite(x));
      if (scores[0].first - scores[1].first < 2 * want.score_error + 40) continue;
      ++clear;
      for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], want.out[i], std::abs(want.out[i]) * 0x1p-15) << name_of(type);
    }
    EXPECT_GE(clear, 9) << name_of(type);
  }
}

TEST(CudaAttendDecode, HugeScoresStayFinite) {
  DUET_NEEDS_GPU();
  check_huge_scores(Kernel::decode);
}

TEST(CudaAttendPrefill, HugeScoresStayFinite) {
  DUET_NEEDS_GPU();
  check_huge_scores(Kernel::prefill);
}

TEST(CudaAttend, NamesWhatItSupports) {
  const auto supports = [](int head_size, int query_heads, int kv_heads) {
    cuda::KvPool kv = pool_of(KvType::f16, head_size, kv_heads, 16);
    kv.page_bytes = 4096;
    return cuda::attend_supports(kv, query_heads);
  };
  EXPECT_TRUE(supports(8, 1, 1));
  EXPECT_TRUE(supports(256, 32, 2));
  EXPECT_FALSE(supports(264, 2, 1));
  EXPECT_FALSE(supports(12, 2, 1));
  EXPECT_FALSE(supports(64, 17, 1));
  EXPECT_FALSE(supports(64, 5, 2));
  EXPECT_FALSE(supports(64, 2, 0));
}

}  // namespace
}  // namespace duet::test
