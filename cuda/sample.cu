// Logits to a token and its log-probabilities, row by row: engine/sampler.cpp on the card.
//   logits   [rows, vocabulary] float32; ids at and beyond a row's usable_vocabulary count as -infinity
//   counters a row: `arrivals`, `counts` and `masses` of RowScratch, zero before and after a launch
//   scratch  a row: the rest of it
//   launch   a team of blocks a row, 256 threads each, grid (blocks of a team, teams), launched cooperatively: the
//            blocks of a row wait for each other between the steps of a selection. Work is cut into segments of 1024
//            ids, whatever the number of blocks, and merged in the order of segments, so that no result depends on the
//            card or on the other rows.
//   greedy   one pass: each segment's best id and sum of exponentials; the block that arrives last merges them
//   drawing  scores = adjusted logits / temperature; threshold of top-k by radix selection over counts, of top-p over
//            masses in fixed point (integers: atomics add them in any order alike); weights; cumulative sum
//   error    ids: those of the host, unless a cumulative sum or a mass lies within 1e-12 of its border. Log-
//            probabilities: exponentials in float32, sums of segments in float64: 1e-6.
//   source   engine/sampler.h for the rules

#include <cfloat>

#include "cuda/check.h"
#include "cuda/device/select.cuh"
#include "cuda/launch.h"
#include "duet/error.h"
#include "engine/sampler.h"

namespace duet::cuda {
namespace {

static_assert(kMostBest == kMaxLogprobs);

constexpr int kThreads = kBins;
constexpr int kPerThread = 4;
constexpr int kSegment = kThreads * kPerThread;
constexpr double kGreedyBelow = 1e-5;  // As engine/sampler.cpp.
constexpr std::uint64_t kNotFinite = ~std::uint64_t{0};
constexpr std::uint64_t kNone = 0;

// A weight in (0, 1] as an integer in units of 2^-42: 2^18 of them fit 64 bits, and the 1024 of a segment fit two
// 32-bit words of 21 bits each, which shared memory adds without loops.
constexpr double kMassUnits = 0x1p42;
constexpr int kLowMassBits = 21;
constexpr double kNoMassBelow = -30;  // exp(-30) is less than half a unit.

struct SegmentFacts {
  std::uint64_t best;        // ranked_key of the raw logits; kNone: all masked; kNotFinite: NaN or +infinity.
  std::uint64_t best_score;  // Likewise of the scores, where there are any.
  float sum;                 // of exp(logit - best logit)
  std::uint32_t ties;        // Scores equal to the threshold.
  double weight;             // Sum of what its ids weigh.
};

struct RowScratch {
  std::uint64_t* masses;    // [kDigits, kBins]
  std::uint32_t* counts;    // [2, kDigits, kBins]: of top-k, of top-p
  std::uint32_t* arrivals;  // [1]
  SegmentFacts* segments;   // [segments]
  std::uint64_t* lists;     // [segments, kMostBest] ranked keys, best first
  float* scores;            // [segments * kSegment]
};

constexpr std::size_t kCountedBytes = kDigits * kBins * (sizeof(std::uint64_t) + 2 * sizeof(std::uint32_t)) + 256;

__host__ __device__ std::int64_t segments_of(std::int64_t vocabulary) { return (vocabulary + kSegment - 1) / kSegment; }

__host__ __device__ std::size_t row_bytes(std::int64_t vocabulary) {
  const std::size_t segment = sizeof(SegmentFacts) + kMostBest * sizeof(std::uint64_t) + kSegment * sizeof(float);
  return (static_cast<std::size_t>(segments_of(vocabulary)) * segment + 255) / 256 * 256;
}

__device__ RowScratch scratch_of(std::byte* counters, std::byte* row, std::int64_t vocabulary) {
  const std::int64_t segments = segments_of(vocabulary);
  RowScratch scratch{};
  scratch.masses = reinterpret_cast<std::uint64_t*>(counters);
  scratch.counts = reinterpret_cast<std::uint32_t*>(scratch.masses + kDigits * kBins);
  scratch.arrivals = scratch.counts + 2 * kDigits * kBins;
  scratch.scores = reinterpret_cast<float*>(row);
  scratch.lists = reinterpret_cast<std::uint64_t*>(scratch.scores + segments * kSegment);
  scratch.segments = reinterpret_cast<SegmentFacts*>(scratch.lists + segments * kMostBest);
  return scratch;
}

struct Shared {
  union {
    double doubles[kMostWarps];
    std::uint64_t longs[kMostWarps];
    std::uint32_t words[kMostWarps];
    float floats[kMostWarps];
  } reduce;
  union {
    float scores[kSegment];
    struct {
      std::uint32_t counts[kBins];
      std::uint32_t low_masses[kBins];
      std::uint32_t high_masses[kBins];
    } bins;
  } work;
  std::uint32_t seen[kSegment / 32];  // A bit an id.
  std::uint32_t flag;
  std::uint64_t found[4];
};

__device__ inline float held_finite(double value) {
  return static_cast<float>(fmin(fmax(value, -static_cast<double>(FLT_MAX)), static_cast<double>(FLT_MAX)));
}
__device__ inline float infinity() { return __uint_as_float(0x7F800000U); }

/// One row seen by one block of its team.
class Row {
 public:
  __device__ Row(const float* logits, std::int64_t vocabulary, const SampleRow& rule, const SampleLists& lists,
                 std::byte* counters, std::byte* scratch, Shared& shared)
      : logits_(logits),
        rule_(rule),
        lists_(lists),
        scratch_(scratch_of(counters, scratch, vocabulary)),
        shared_(shared),
        usable_(max(0, static_cast<std::int32_t>(min(std::int64_t{rule.usable_vocabulary}, vocabulary)))),
        segments_(static_cast<std::int32_t>(segments_of(vocabulary))),
        greedy_(rule.temperature < kGreedyBelow),
        adjusts_(rule.bias_count > 0 || rule.repetition_penalty != 1) {}

  __device__ void run(SampledRow* out) {
    each_segment([&](std::int32_t segment) { look_at(segment); });
    if (greedy_) {
      if (!arrive()) return;
      merge();
      finish(best_, adjusts_ ? id_of_ranked(best_score_) : id_of_ranked(best_), out);
      return;
    }
    arrive_and_wait();
    merge();
    if (finite()) {
      if (rule_.top_k > 0) keep_top_k();
      if (rule_.top_p < 1) keep_top_p();
      if (ties_ != kAllTies) {
        each_segment([&](std::int32_t segment) { count_ties(segment); });
        arrive_and_wait();
      }
      each_segment([&](std::int32_t segment) { weigh(segment); });
    }
    if (!arrive()) return;
    const std::uint32_t id = finite() ? draw() : 0;
    finish(best_, id, out);
  }

 private:
  static constexpr std::uint32_t kAllTies = ~0U;

  // ---- the team ----

  template <class Body>
  __device__ void each_segment(Body body) {
    for (auto segment = static_cast<std::int32_t>(blockIdx.x); segment < segments_;
         segment += static_cast<std::int32_t>(gridDim.x))
      body(segment);
  }

  /// True in the block that comes last; then everything that the others wrote before is seen here.
  __device__ bool arrive() {
    ++phase_;
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      shared_.flag = atomicAdd(scratch_.arrivals, 1U) + 1 == phase_ * gridDim.x ? 1 : 0;
      __threadfence();
    }
    __syncthreads();
    return shared_.flag != 0;
  }

  __device__ void arrive_and_wait() {
    ++phase_;
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      atomicAdd(scratch_.arrivals, 1U);
      while (*static_cast<volatile std::uint32_t*>(scratch_.arrivals) < phase_ * gridDim.x) {
      }
      __threadfence();
    }
    __syncthreads();
  }

  template <class T, class Combine>
  __device__ T all(T value, T identity, Combine combine, T* shared) {
    const T result = reduce_block(value, identity, combine, shared);
    __syncthreads();
    return result;
  }
  __device__ std::uint64_t largest(std::uint64_t key) {
    return all(key, std::uint64_t{0}, Max{}, shared_.reduce.longs);
  }

  // ---- numbers of a segment: thread t has ids [first, first + 4) ----

  __device__ static std::int32_t first_id(std::int32_t segment) {
    return segment * kSegment + static_cast<std::int32_t>(threadIdx.x) * kPerThread;
  }

  __device__ void load_logits(std::int32_t segment, float (&x)[kPerThread]) const {
    const std::int32_t first = first_id(segment);
    if (first + kPerThread <= usable_ && reinterpret_cast<std::uintptr_t>(logits_) % sizeof(float4) == 0) {
      const float4 four = *reinterpret_cast<const float4*>(logits_ + first);
      x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
      return;
    }
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) x[i] = first + i < usable_ ? logits_[first + i] : -infinity();
  }

  __device__ void load_scores(std::int32_t segment, float (&x)[kPerThread]) const {
    const float4 four = __ldcg(reinterpret_cast<const float4*>(scratch_.scores + first_id(segment)));
    x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
  }

  __device__ static std::uint64_t best_of(const float (&x)[kPerThread], std::int32_t first) {
    std::uint64_t best = kNone;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (!(x[i] < infinity())) return kNotFinite;
      if (x[i] > -infinity()) best = max(best, ranked_key(x[i], static_cast<std::uint32_t>(first + i)));
    }
    return best;
  }

  // ---- first pass: facts of the raw logits, scores, the best of each segment ----

  __device__ void look_at(std::int32_t segment) {
    float x[kPerThread];
    load_logits(segment, x);
    const std::uint64_t best = largest(best_of(x, first_id(segment)));
    SegmentFacts facts{best, kNone, 0, 0, 0};
    if (best != kNone && best != kNotFinite) {
      const float top = value_of_ranked(best);
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) sum += expf(x[i] - top);
      facts.sum = all(sum, 0.0F, Sum{}, shared_.reduce.floats);
      if (rule_.logprobs > 0) list_best(segment, x, best);
    }
    if (best != kNotFinite && (adjusts_ || !greedy_)) {
      if (adjusts_) adjust(segment, x);
      if (!greedy_) {
#pragma unroll
        for (int i = 0; i < kPerThread; ++i)
          if (x[i] > -infinity()) x[i] = held_finite(static_cast<double>(x[i]) / rule_.temperature);
        reinterpret_cast<float4*>(scratch_.scores + first_id(segment))[0] = make_float4(x[0], x[1], x[2], x[3]);
        if (rule_.top_k > 0) count_digits(x, Prefix{});
      }
      facts.best_score = largest(best_of(x, first_id(segment)));
    }
    if (threadIdx.x == 0) scratch_.segments[segment] = facts;
  }

  /// The best ids of a segment, one after the other: each the largest key below the one before.
  __device__ void list_best(std::int32_t segment, const float (&x)[kPerThread], std::uint64_t best) {
    const int wanted = min(rule_.logprobs, kMostBest);
    for (int place = 0; place < wanted; ++place) {
      if (threadIdx.x == 0) scratch_.lists[static_cast<std::int64_t>(segment) * kMostBest + place] = best;
      if (best == kNone) continue;
      std::uint64_t next = kNone;
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) {
        const std::uint64_t key = ranked_key(x[i], static_cast<std::uint32_t>(first_id(segment) + i));
        if (x[i] > -infinity() && key < best) next = max(next, key);
      }
      best = largest(next);
    }
  }

  /// Logit bias, then the repetition penalty.
  __device__ void adjust(std::int32_t segment, float (&x)[kPerThread]) {
    float* scores = shared_.work.scores;
    const int own = static_cast<int>(threadIdx.x) * kPerThread;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) scores[own + i] = x[i];
    const std::int32_t first = segment * kSegment;
    const std::int32_t end = min(first + kSegment, usable_);

    const SampleBias* biases = lists_.biases + rule_.first_bias;
    clear_seen();
    if (threadIdx.x == 0) shared_.flag = 0;
    __syncthreads();
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < rule_.bias_count; i += kThreads)
      if (biases[i].id >= first && biases[i].id < end && !see(biases[i].id - first)) shared_.flag = 1;
    __syncthreads();
    const bool in_order = shared_.flag != 0;  // An id occurs twice: its biases are added one after the other.
    const auto apply = [&](const SampleBias& bias) {
      float& score = scores[bias.id - first];
      if (score > -infinity()) score = held_finite(static_cast<double>(score) + static_cast<double>(bias.bias));
    };
    for (std::int32_t i = in_order ? 0 : static_cast<std::int32_t>(threadIdx.x); i < rule_.bias_count;
         i += in_order ? 1 : kThreads) {
      const SampleBias bias = biases[i];
      if (bias.id < first || bias.id >= end) continue;
      if (!in_order || (bias.id - first) % kThreads == static_cast<std::int32_t>(threadIdx.x)) apply(bias);
    }
    __syncthreads();

    if (rule_.repetition_penalty != 1) {
      const std::int32_t* history = lists_.history + rule_.first_history;
      clear_seen();
      __syncthreads();
      for (auto i = static_cast<std::int32_t>(threadIdx.x); i < rule_.history_count; i += kThreads) {
        const std::int32_t id = history[i];
        if (id < first || id >= end || !see(id - first)) continue;  // Each id counts once.
        const float score = scores[id - first];
        if (score == -infinity()) continue;
        const double wide = score;
        scores[id - first] = held_finite(score < 0 ? wide * rule_.repetition_penalty : wide / rule_.repetition_penalty);
      }
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) x[i] = scores[own + i];
    __syncthreads();
  }

  __device__ void clear_seen() {
    if (threadIdx.x < kSegment / 32) shared_.seen[threadIdx.x] = 0;
  }
  /// True the first time.
  __device__ bool see(std::int32_t offset) {
    const std::uint32_t bit = 1U << (offset % 32);
    return (atomicOr(&shared_.seen[offset / 32], bit) & bit) == 0;
  }

  // ---- facts of the whole row ----

  __device__ void merge() {
    std::uint64_t best = kNone;
    std::uint64_t best_score = kNone;
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < segments_; i += kThreads) {
      best = max(best, __ldcg(&scratch_.segments[i].best));
      best_score = max(best_score, __ldcg(&scratch_.segments[i].best_score));
    }
    best_ = largest(best);
    best_score_ = largest(best_score);
    if (best_score_ != kNone) top_score_ = value_of_ranked(best_score_);
  }
  __device__ bool finite() const { return best_ != kNone && best_ != kNotFinite; }

  // ---- thresholds ----

  __device__ void clear_bins() {
    shared_.work.bins.counts[threadIdx.x] = 0;
    shared_.work.bins.low_masses[threadIdx.x] = 0;
    shared_.work.bins.high_masses[threadIdx.x] = 0;
    __syncthreads();
  }

  /// Adds a segment to the counts of top-k for the digit after `prefix`.
  __device__ void count_digits(const float (&x)[kPerThread], const Prefix& prefix) {
    clear_bins();
#pragma unroll
    for (int i = 0; i < kPerThread; ++i)
      if (x[i] > -infinity() && prefix.matches(key_of(x[i])))
        atomicAdd(&shared_.work.bins.counts[prefix.next_digit(key_of(x[i]))], 1U);
    __syncthreads();
    const std::uint32_t count = shared_.work.bins.counts[threadIdx.x];
    if (count != 0) atomicAdd(scratch_.counts + prefix.digits * kBins + threadIdx.x, count);
    __syncthreads();
  }

  /// transformers keeps every score that equals the k-th largest.
  __device__ void keep_top_k() {
    auto wanted = static_cast<std::uint32_t>(rule_.top_k);
    Prefix prefix;
    while (prefix.digits < kDigits) {
      if (prefix.digits > 0) {  // The first digit was counted in the first pass.
        each_segment([&](std::int32_t segment) {
          float x[kPerThread];
          load_scores(segment, x);
          count_digits(x, prefix);
        });
        arrive_and_wait();
      }
      const std::uint32_t count = __ldcg(scratch_.counts + prefix.digits * kBins + bin_of_thread());
      std::uint32_t total = 0;
      const std::uint32_t reached = scan_block(count, &total, shared_.reduce.words);
      if (wanted >= total) return lowest_kept(prefix);  // All of them: k is no less than there are.
      if (reached >= wanted && reached - count < wanted) {
        shared_.found[0] = static_cast<std::uint64_t>(bin_of_thread());
        shared_.found[1] = reached - count;
        shared_.found[2] = reached == wanted ? 1 : 0;
      }
      __syncthreads();
      prefix = prefix.with(static_cast<int>(shared_.found[0]));
      wanted -= static_cast<std::uint32_t>(shared_.found[1]);
      const bool exact = shared_.found[2] != 0;
      __syncthreads();
      if (exact) break;  // The bin's whole content is kept.
    }
    lowest_kept(prefix);
  }
  __device__ void lowest_kept(const Prefix& prefix) {
    if (prefix.digits > 0) cut_ = max(cut_, prefix.lowest_key());
  }

  __device__ double weight_of(float score) const {
    return exp(static_cast<double>(score) - static_cast<double>(top_score_));
  }

  /// Adds a segment to the counts and masses of top-p for the digit after `prefix`.
  __device__ void weigh_digits(std::int32_t segment, const Prefix& prefix) {
    float x[kPerThread];
    load_scores(segment, x);
    clear_bins();
    auto& bins = shared_.work.bins;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const std::uint32_t key = key_of(x[i]);
      if (x[i] == -infinity() || key < cut_ || !prefix.matches(key)) continue;
      const int bin = prefix.next_digit(key);
      atomicAdd(&bins.counts[bin], 1U);
      if (static_cast<double>(x[i]) - static_cast<double>(top_score_) < kNoMassBelow) continue;
      const auto mass = static_cast<std::uint64_t>(__double2ull_rn(weight_of(x[i]) * kMassUnits));
      atomicAdd(&bins.low_masses[bin], static_cast<std::uint32_t>(mass & ((1U << kLowMassBits) - 1)));
      atomicAdd(&bins.high_masses[bin], static_cast<std::uint32_t>(mass >> kLowMassBits));
    }
    __syncthreads();
    const std::uint32_t count = bins.counts[threadIdx.x];
    if (count != 0) {
      const std::int64_t place = prefix.digits * kBins + threadIdx.x;
      const std::uint64_t mass =
          (std::uint64_t{bins.high_masses[threadIdx.x]} << kLowMassBits) + bins.low_masses[threadIdx.x];
      atomicAdd(scratch_.counts + kDigits * kBins + place, count);
      atomicAdd(reinterpret_cast<unsigned long long*>(scratch_.masses + place), mass);
    }
    __syncthreads();
  }

  /// The smallest set of largest scores whose weights reach top_p of all; of equal scores the lowest ids.
  __device__ void keep_top_p() {
    Prefix prefix;
    std::uint64_t above = 0;
    double target = 0;
    std::uint32_t count = 0;
    std::uint64_t mass = 0;
    while (prefix.digits < kDigits) {
      each_segment([&](std::int32_t segment) { weigh_digits(segment, prefix); });
      arrive_and_wait();
      const std::int64_t place = prefix.digits * kBins + bin_of_thread();
      const std::uint32_t own_count = __ldcg(scratch_.counts + kDigits * kBins + place);
      const std::uint64_t own_mass = __ldcg(scratch_.masses + place);
      std::uint64_t total = 0;
      const std::uint64_t reached = scan_block(own_mass, &total, shared_.reduce.longs);
      if (prefix.digits == 0) target = rule_.top_p * static_cast<double>(total);
      __syncthreads();
      // The first bin from the top that has numbers and reaches the target.
      const bool reaches = own_count != 0 && static_cast<double>(above + reached) >= target;
      const std::uint32_t place_found =
          all(reaches ? static_cast<std::uint32_t>(threadIdx.x) : kAllTies, kAllTies, Min{}, shared_.reduce.words);
      if (place_found == threadIdx.x) {
        shared_.found[0] = static_cast<std::uint64_t>(bin_of_thread());
        shared_.found[1] = above + reached - own_mass;
        shared_.found[2] = own_count;
        shared_.found[3] = own_mass;
      }
      __syncthreads();
      prefix = prefix.with(static_cast<int>(shared_.found[0]));
      above = shared_.found[1];
      count = static_cast<std::uint32_t>(shared_.found[2]);
      mass = shared_.found[3];
      __syncthreads();
      if (count == 1) break;
    }
    lowest_kept(prefix);
    if (count == 1) return;
    // All `count` scores are equal: the fewest of them that reach the target.
    std::uint32_t fewest = 1;
    std::uint32_t most = count;
    const std::uint64_t each = mass / count;
    while (fewest < most) {
      const std::uint32_t middle = fewest + (most - fewest) / 2;
      if (static_cast<double>(above + middle * each) >= target) {
        most = middle;
      } else {
        fewest = middle + 1;
      }
    }
    if (fewest < count) ties_ = fewest;
  }

  // ---- weights and the draw ----

  __device__ void count_ties(std::int32_t segment) {
    float x[kPerThread];
    load_scores(segment, x);
    std::uint32_t ties = 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) ties += key_of(x[i]) == cut_ ? 1 : 0;
    ties = all(ties, 0U, Sum{}, shared_.reduce.words);
    if (threadIdx.x == 0) scratch_.segments[segment].ties = ties;
  }

  /// What the ids of a segment weigh: 0 where an id is never chosen.
  __device__ void weights_of(std::int32_t segment, float (&weights)[kPerThread]) {
    float x[kPerThread];
    load_scores(segment, x);
    std::uint32_t rank = 0;  // Of this thread's first tie among all.
    if (ties_ != kAllTies) {
      std::uint32_t before = 0;
      for (auto i = static_cast<std::int32_t>(threadIdx.x); i < segment; i += kThreads)
        before += __ldcg(&scratch_.segments[i].ties);
      before = all(before, 0U, Sum{}, shared_.reduce.words);
      std::uint32_t own = 0;
#pragma unroll
      for (int i = 0; i < kPerThread; ++i) own += key_of(x[i]) == cut_ ? 1 : 0;
      std::uint32_t total = 0;
      rank = before + scan_block(own, &total, shared_.reduce.words) - own;
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      weights[i] = 0;
      const std::uint32_t key = key_of(x[i]);
      if (x[i] == -infinity() || key < cut_) continue;
      if (key == cut_ && rank++ >= ties_) continue;
      const double weight = weight_of(x[i]);
      if (!(weight < rule_.min_p)) weights[i] = static_cast<float>(weight);  // The largest weighs 1.
    }
  }

  __device__ static double sum_of(const float (&weights)[kPerThread]) {
    double sum = 0;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) sum += static_cast<double>(weights[i]);
    return sum;
  }

  __device__ void weigh(std::int32_t segment) {
    float weights[kPerThread];
    weights_of(segment, weights);
    const double sum = all(sum_of(weights), 0.0, Sum{}, shared_.reduce.doubles);
    if (threadIdx.x == 0) scratch_.segments[segment].weight = sum;
  }

  /// The first id whose cumulative weight exceeds uniform * total; the last that weighs anything where rounding leaves
  /// none.
  __device__ std::uint32_t draw() {
    double total = 0;
    for (std::int32_t first = 0; first < segments_; first += kThreads) total += sums_of_segments(first, 0).total;
    const double target = rule_.uniform * total;
    double before = 0;
    std::uint32_t segment = 0;
    double base = 0;
    for (std::int32_t first = 0; first < segments_; first += kThreads) {
      const SegmentSums sums = sums_of_segments(first, before);
      const auto own = static_cast<std::uint32_t>(first) + threadIdx.x;
      const bool exceeds = sums.weight > 0 && target < sums.reached;
      std::uint32_t chosen = all(exceeds ? own : kAllTies, kAllTies, Min{}, shared_.reduce.words);
      const bool found = chosen != kAllTies;
      if (!found) chosen = all(sums.weight > 0 ? own + 1 : 0U, 0U, Max{}, shared_.reduce.words) - 1;
      if (chosen != kAllTies) {  // None weighs anything here: keep the last that did.
        segment = chosen;
        if (own == chosen) shared_.found[0] = __double_as_longlong(sums.reached - sums.weight);
        __syncthreads();
        base = __longlong_as_double(static_cast<long long>(shared_.found[0]));
        __syncthreads();
      }
      if (found) break;
      before += sums.total;
    }

    float weights[kPerThread];
    weights_of(static_cast<std::int32_t>(segment), weights);
    const double own = sum_of(weights);
    double all_of_it = 0;
    double reached = base + (scan_block(own, &all_of_it, shared_.reduce.doubles) - own);
    __syncthreads();
    std::uint32_t first_over = kAllTies;
    std::uint32_t last = 0;
    const auto first = static_cast<std::uint32_t>(first_id(static_cast<std::int32_t>(segment)));
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      if (weights[i] == 0) continue;
      reached += static_cast<double>(weights[i]);
      last = first + i;
      if (target < reached) first_over = min(first_over, first + i);
    }
    const std::uint32_t chosen = all(first_over, kAllTies, Min{}, shared_.reduce.words);
    const std::uint32_t last_of_all = all(last, 0U, Max{}, shared_.reduce.words);
    return chosen != kAllTies ? chosen : last_of_all;
  }

  struct SegmentSums {
    double weight, reached, total;  // Of segment first + t; before and up to it; of all 256.
  };
  __device__ SegmentSums sums_of_segments(std::int32_t first, double before) {
    const std::int32_t own = first + static_cast<std::int32_t>(threadIdx.x);
    SegmentSums sums{};
    sums.weight = own < segments_ ? __ldcg(&scratch_.segments[own].weight) : 0.0;
    sums.reached = before + scan_block(sums.weight, &sums.total, shared_.reduce.doubles);
    __syncthreads();
    return sums;
  }

  // ---- the end of a row, by the block that came last ----

  __device__ void finish(std::uint64_t best, std::uint32_t id, SampledRow* out) {
    if (!finite()) {
      if (threadIdx.x == 0) *out = SampledRow{.id = -1};
    } else {
      const double top = value_of_ranked(best);
      double sum = 0;
      for (auto i = static_cast<std::int32_t>(threadIdx.x); i < segments_; i += kThreads) {
        const std::uint64_t own = __ldcg(&scratch_.segments[i].best);
        if (own != kNone)
          sum += static_cast<double>(__ldcg(&scratch_.segments[i].sum)) *
                 exp(static_cast<double>(value_of_ranked(own)) - top);
      }
      const double log_sum = top + log(all(sum, 0.0, Sum{}, shared_.reduce.doubles));
      if (threadIdx.x == 0) {
        out->id = static_cast<std::int32_t>(id);
        out->logprob = held_finite(static_cast<double>(logits_[id]) - log_sum);
        out->finite = 1;
      }
      const int count = merge_lists(best, log_sum, out);
      if (threadIdx.x == 0) out->best_count = count;
    }
    leave_zeros();
  }

  __device__ int merge_lists(std::uint64_t best, double log_sum, SampledRow* out) {
    const int wanted = min(rule_.logprobs, kMostBest);
    int count = 0;
    while (count < wanted && best != kNone) {
      if (threadIdx.x == 0) {
        out->best_ids[count] = static_cast<std::int32_t>(id_of_ranked(best));
        out->best_logprobs[count] = held_finite(static_cast<double>(value_of_ranked(best)) - log_sum);
      }
      if (++count == wanted) break;
      std::uint64_t next = kNone;
      for (auto i = static_cast<std::int32_t>(threadIdx.x); i < segments_ * wanted; i += kThreads) {
        const std::int32_t segment = i / wanted;
        if (__ldcg(&scratch_.segments[segment].best) == kNone) continue;  // It wrote no list.
        const std::uint64_t key = __ldcg(scratch_.lists + static_cast<std::int64_t>(segment) * kMostBest + i % wanted);
        if (key < best) next = max(next, key);
      }
      best = largest(next);
    }
    return count;
  }

  /// For the next launch. Every other block has left.
  __device__ void leave_zeros() {
    if (!greedy_) {
      for (int i = static_cast<int>(threadIdx.x); i < kDigits * kBins; i += kThreads) {
        scratch_.masses[i] = 0;
        scratch_.counts[i] = 0;
        scratch_.counts[kDigits * kBins + i] = 0;
      }
    }
    if (threadIdx.x == 0) *scratch_.arrivals = 0;
  }

  const float* logits_;
  const SampleRow rule_;
  const SampleLists lists_;
  RowScratch scratch_;
  Shared& shared_;
  std::int32_t usable_;
  std::int32_t segments_;
  bool greedy_;
  bool adjusts_;
  std::uint32_t phase_ = 0;
  std::uint64_t best_ = kNone;
  std::uint64_t best_score_ = kNone;
  float top_score_ = 0;
  std::uint32_t cut_ = 0;  // Keys below are never drawn; of those equal to it the first `ties_`.
  std::uint32_t ties_ = kAllTies;
};

__global__ void __launch_bounds__(kThreads)
    sample_kernel(const float* logits, std::int64_t vocabulary, int row_count, const SampleRow* rules,
                  SampleLists lists, std::byte* counters, std::byte* scratch, SampledRow* out) {
  __shared__ Shared shared;
  for (int row = static_cast<int>(blockIdx.y); row < row_count; row += static_cast<int>(gridDim.y)) {
    if (rules[row].active == 0) continue;
    Row(logits + row * vocabulary, vocabulary, rules[row], lists,
        counters + static_cast<std::size_t>(row) * kCountedBytes,
        scratch + static_cast<std::size_t>(row) * row_bytes(vocabulary), shared)
        .run(out + row);
    __syncthreads();
  }
}

}  // namespace

std::size_t sample_scratch_bytes(std::int64_t vocabulary, int row_count) {
  return static_cast<std::size_t>(row_count) * row_bytes(vocabulary);
}

std::size_t sample_counter_bytes(int row_count) { return static_cast<std::size_t>(row_count) * kCountedBytes; }

void sample(const float* logits, std::int64_t vocabulary, int row_count, const SampleRow* rules,
            const SampleLists& lists, std::byte* counters, std::byte* scratch, SampledRow* out, Stream stream) {
  constexpr std::int64_t kMostIds = std::int64_t{1} << 21;  // Masses of so many still fit 64 bits.
  if (row_count < 0 || vocabulary < 1 || vocabulary > kMostIds)
    throw Error(Code::unsupported, "The card's sample got a vocabulary it has no launch for",
                "Give 1 to 2,097,152 logits a row");
  if (row_count == 0) return;
  int device = 0;
  int processors = 0;
  int resident = 0;
  DUET_CUDA(cudaGetDevice(&device));
  DUET_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  DUET_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, sample_kernel, kThreads, 0));
  const std::int64_t capacity = std::int64_t{processors} * resident;
  const std::int64_t teams = capacity < row_count ? capacity : row_count;
  const std::int64_t share = capacity / teams;
  const std::int64_t blocks = segments_of(vocabulary) < share ? segments_of(vocabulary) : share;

  cudaLaunchAttribute cooperative{};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(teams));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &cooperative;
  config.numAttrs = 1;
  DUET_CUDA(
      cudaLaunchKernelEx(&config, sample_kernel, logits, vocabulary, row_count, rules, lists, counters, scratch, out));
}

}  // namespace duet::cuda
