#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cuda/matrix.h"
#include "cuda/step_types.h"
#include "engine/weights.h"

/// Every launcher of the CUDA backend: arguments, what it supports, and the work a launch does. No CUDA header here, so
/// that the dispatcher, tests and benchmarks stay plain C++. Matrix views hold device pointers. Launchers check what
/// their kernel assumes, launch on the given stream and return at once; they throw Error(unsupported) before launching,
/// never after. None allocates or synchronises, so every one can be captured in a graph. Results do not depend on what
/// else runs: no sum is taken in an order left to chance.
struct CUstream_st;

namespace duet::cuda {

using Stream = CUstream_st*;

/// Bytes a launch must move and operations it must do: the floor that benchmarks compare with.
struct Work {
  double bytes_read = 0;
  double bytes_written = 0;
  double operations = 0;
};

// ---- dequantise.cu: blocks to numbers ----

/// destination [rows, columns] row-major in `output` (f32, f16 or bf16), bit for bit what bitsandbytes' dequantize_4bit
/// gives: code * scale in one float32 rounding, then one rounding to `output`.
void dequantise(const Matrix& matrix, Storage output, void* destination, Stream stream);
bool dequantise_supports(const StorageSpec& spec, Storage output);
Work work_of_dequantise(const Matrix& matrix, Storage output);

// ---- quantise.cu: numbers to blocks, on the way in ----

/// `source` [rows, columns] in f32, f16 or bf16 to the blocks of `region`, laid out by layout_of(rows, columns, spec);
/// bit for bit what loaders/quantise.h gives, except that an all-zero block may hold another code of zero. Not nested:
/// the second quantisation needs the mean of all scales and runs on the host. `first_bad` (device, one std::int64_t,
/// preset to -1 by the caller) receives an index of a non-finite element when there is one.
void quantise(const void* source, Storage source_type, std::int64_t rows, std::int64_t columns, const StorageSpec& spec,
              std::byte* region, std::int64_t* first_bad, Stream stream);
bool quantise_supports(Storage source_type, const StorageSpec& spec);
Work work_of_quantise(std::int64_t rows, std::int64_t columns, Storage source_type, const StorageSpec& spec);

// ---- tile.cu: rows to tiles, on the way in ----

/// Writes rows [first_row, first_row + source.rows) of `target` (in tiles, pointers to its whole region) from `source`,
/// a matrix of those rows alone, arranged in rows. first_row and source.rows are multiples of 16; codes and scales (or
/// scale codes) move where they are given, nested_scales and map do not. bf16 and f32 sources into f16 tiles are
/// divided by target.factor.
void tile(const Matrix& source, const DeviceMatrix& target, std::int64_t first_row, Stream stream);

/// *largest = max(*largest, largest magnitude of `source` [count]), NaN and infinity included as infinity. `largest` is
/// on the device and holds 0 or more before.
void largest_magnitude(const void* source, Storage type, std::int64_t count, float* largest, Stream stream);

// ---- prepare.cu: activations as the matrix kernels read them ----
// The launches that prepare up to 32 rows also do lora_shrink of the projection that follows when they are given it as
// `shrink_for` (with its x, lora, rows and adapters set), in blocks of their own.

struct Projection;
constexpr int kMostRowsBesideShrink = 32;

/// Rows of x in f16 times a power of two of their own: value = x * factors[row]. The power is chosen so that the row's
/// largest magnitude lies in [2^14, 2^15]: nothing overflows, and what underflows is below what float32 sums would
/// keep. Rows below 2^-112 lie lower (factors are normal numbers). A row of zeros has factor 1, and so has a row that
/// is not finite: it is marked and written as zeros.
struct PreparedRows {
  std::uint16_t* x = nullptr;  ///< [rows, columns] f16, rows 16-byte aligned: the stride is `columns` rounded up to 8
                               ///< (prepared_stride), the filling is zero.
  float* factors = nullptr;    ///< [rows]
};
constexpr std::int64_t prepared_stride(std::int64_t columns) { return (columns + 7) / 8 * 8; }

struct Marks {
  std::int32_t* bad_layer = nullptr;  ///< [rows]
  std::int32_t layer = 0;             ///< Lowered to this where a row's input is not finite.
  std::int32_t own_layer = 0;         ///< normalise: lowered to this where gamma alone makes the row not finite.
};

/// residual[row] = embedding of its token, adapters' LoRA, DoRA and replacement applied; float32 [rows, hidden]. Also
/// sets bad_layer[row] to kNoBadLayer. Rows that are not active become zeros. `embedding` may lie in pinned host memory
/// (arrangement rows or tiles alike).
void embed(const DeviceMatrix& embedding, const StepRow* rows, int row_count, const AdapterTable& adapters, int place,
           float* residual, std::int32_t* bad_layer, Stream stream);

/// RMSNorm: gamma * x / sqrt(mean(x^2) + epsilon), gamma + 1 in place of gamma when `zero_centred`. x float32 [rows,
/// columns]; `gamma` [columns], or the row's adapter's replacement at `place`.
void normalise(const float* x, const float* gamma, double epsilon, bool zero_centred, const StepRow* rows,
               int row_count, std::int64_t columns, const AdapterTable& adapters, int place, const PreparedRows& out,
               const Marks& marks, Stream stream, const Projection* shrink_for = nullptr);

/// x float32 [rows, columns] as it is.
void prepare(const float* x, int row_count, std::int64_t columns, const PreparedRows& out, const Marks& marks,
             Stream stream, const Projection* shrink_for = nullptr);

/// gate / (1 + exp(-gate)) * up; float32 [rows, columns] each.
void swiglu(const float* gate, const float* up, int row_count, std::int64_t columns, const PreparedRows& out,
            const Marks& marks, Stream stream, const Projection* shrink_for = nullptr);

// ---- project.cu: y = W x and its adapters ----

/// One matrix of a launch; several share the input. Where a row has an adapter with LoRA at `place`:
///   y = row_scale .* (W x + s (B z + c)) + b,  s = part.scale * row.adapter_scale, row_scale 1 without DoRA
struct ProjectionPart {
  DeviceMatrix weight;          ///< [out, in]
  int place = 0;                ///< Of the weight in the adapter table.
  const float* bias = nullptr;  ///< [out] or null.
  int bias_place = -1;          ///< Of the bias (an adapter may replace or add it); -1: none.
  float* y = nullptr;           ///< [rows, out] float32, row stride `out`.
};
constexpr int kMostProjectionParts = 3;

struct Projection {
  ProjectionPart parts[kMostProjectionParts];
  int part_count = 0;
  PreparedRows x;  ///< [rows, columns]
  int row_count = 0;
  std::int64_t columns = 0;
  const StepRow* rows = nullptr;
  AdapterTable adapters;  ///< parts null: no adapter in this launch.
  float* lora =
      nullptr;  ///< z = A x, [rows, kMostProjectionParts, max_rank] float32: written by lora_shrink, read by project.
  int max_rank = 0;
  bool add = false;                   ///< y += the result instead of y =.
  float* partial_sums = nullptr;      ///< project_scratch_floats(...) floats, for sums split over blocks.
  std::uint32_t* counters = nullptr;  ///< project_scratch_counters(...), zero before and after every launch.
};

/// Launches nothing when projection.adapters is empty. Launch before `project` of the same Projection, unless its rows
/// were prepared with `shrink_for`.
void lora_shrink(const Projection& projection, Stream stream);
/// Up to 32 rows take one path whose sums do not depend on the number of rows; more take the tiled-matrix path.
void project(const Projection& projection, Stream stream);

/// Work space for any projection of at most `rows` rows onto at most `out` outputs in all.
std::size_t project_scratch_floats(std::int64_t rows, std::int64_t out);
std::size_t project_scratch_counters(std::int64_t rows, std::int64_t out);
bool project_supports(const DeviceMatrix& weight);
Work work_of_project(const Projection& projection);

// ---- dora.cu: an adapter's row norms, once when it is loaded ----

/// magnitude[o] = magnitude[o] / |W[o] + scale * (B A)[o]|, [out], in place; of the embedding (`by_column`) over the
/// columns h of W [vocabulary, hidden]: |W[:, h] + scale * sum_r B[h, r] A[r, :]|. `part` is on the host.
void dora_row_scales(const DeviceMatrix& weight, const AdapterPart& part, float scale, bool by_column, float* magnitude,
                     Stream stream);

// ---- rope.cu: head norms, rotation, keys and values to their pages ----

struct RopeAppend {
  float* query = nullptr;      ///< [rows, query_heads * head_size] float32: normed and rotated in place.
  const float* key = nullptr;  ///< [rows, kv_heads * head_size]
  const float* value = nullptr;
  int row_count = 0;
  int query_heads = 0;
  const StepRow* rows = nullptr;
  const float* inverse_frequencies = nullptr;  ///< [head_size / 2], device.
  float attention_factor = 1.0F;
  const float* query_norm = nullptr;  ///< [head_size] or null; likewise key_norm.
  const float* key_norm = nullptr;
  int query_norm_place = -1, key_norm_place = -1;
  double norm_epsilon = 0;
  AdapterTable adapters;
  KvPool kv;
  const std::int32_t* pages = nullptr;  ///< All page lists; a row's begins at rows[row].first_page.
  int layer = 0;
  Marks marks;  ///< Also lowered where a key or value does not fit the KV type.
};
void rope_append(const RopeAppend& arguments, Stream stream);

// ---- attend_decode.cu, attend_prefill.cu: attention over pages ----

struct Attention {
  const float* query = nullptr;  ///< [rows, query_heads * head_size] float32.
  float* out = nullptr;          ///< Likewise.
  int row_count = 0;
  int query_heads = 0;
  const StepRow* rows = nullptr;
  KvPool kv;
  const std::int32_t* pages = nullptr;
  int layer = 0;
  int window_tokens = 0;                ///< 0: none; else a row at position p sees (p - window, p].
  float scale = 0;                      ///< 1 / sqrt(head_size)
  std::int64_t max_context_tokens = 0;  ///< Grid of the decode kernel: no position is at or beyond it.
  int scratch_rows = 0;                 ///< Rows that `partial` and `counters` are for.
  float* partial = nullptr;             ///< attend_scratch_floats(...) floats.
  std::uint32_t* counters = nullptr;    ///< attend_scratch_counters(...), zero before and after every launch.
};

/// Each row is the newest token of a sequence of its own. A row's sums depend on its own length alone.
void attend_decode(const Attention& attention, Stream stream);
/// Rows are neighbouring positions of one sequence: rows[i].position = rows[0].position + i. A row's sums do not depend
/// on where the chunk begins or ends. `first_position` is rows[0].position.
void attend_prefill(const Attention& attention, std::int64_t first_position, Stream stream);
std::size_t attend_scratch_floats(int rows, int query_heads, int head_size, std::int64_t max_context_tokens);
std::size_t attend_scratch_counters(int rows, int kv_heads);
bool attend_supports(const KvPool& kv, int query_heads);  ///< Head sizes 8 to 256, multiples of 8.

// ---- sample.cu: logits to a token and its log-probabilities ----

struct SampleLists {
  const std::int32_t* history = nullptr;  ///< Device.
  const SampleBias* biases = nullptr;     ///< Device.
};

/// As engine/sampler.h's `sample`, row by row. logits float32 [rows, vocabulary], left as they are; `counters`
/// sample_counter_bytes(...), `scratch` sample_scratch_bytes(...). Rows with `active` 0 are
/// skipped. A greedy row without biases and penalty costs one pass.
void sample(const float* logits, std::int64_t vocabulary, int row_count, const SampleRow* rules,
            const SampleLists& lists, std::byte* counters, std::byte* scratch, SampledRow* out, Stream stream);
std::size_t sample_scratch_bytes(std::int64_t vocabulary, int row_count);
std::size_t sample_counter_bytes(int row_count);  ///< Zero before and after every launch.

}  // namespace duet::cuda
