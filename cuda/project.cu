// y = W x for up to 32 rows: weights stream once, whatever the number of rows.
//   weights   tiles (cuda/matrix.h): the 16-row left operand of the tensor cores, codes without their scales
//   x         [rows, columns] f16 (PreparedRows): the right operand, 8 rows of a step to a group, 1, 2 or 4 groups. The
//             order of k inside a tile is the lanes': in step s of a 4-bit tile lane t holds columns 16 t + 4 s .. + 3
//             of both operands, so that x comes in contiguous pieces and nothing is shuffled.
//   y         [rows, out] float32
//   launch    8 warps a block; 4 or 8 of them share a row of tiles and cut its columns into equal runs. Partial sums
//             meet in shared memory; where rows of tiles are few, several blocks share one and the last to arrive adds
//             their sums. Who sums what depends on the shape alone. A block takes every gridDim.x-th row of tiles, and
//             asks for the first tiles of the next before it ends the one at hand.
//   scales    a fragment of one tile is multiplied by its two rows' scales when it is added to the sums
//   error     f16 codes (2^-11 of each product) for 4-bit storages, none for int8 and f16; float32 sums; x itself was
//             rounded to f16 by prepare (tests/cuda/project_test.cpp)
//   source    QLoRA's formats; the layout's idea is Marlin's (arXiv:2408.11743), the byte table FLUTE's
//   (arXiv:2407.10960)

#include <algorithm>
#include <cstdint>

#include "cuda/check.h"
#include "cuda/device/adapters.cuh"
#include "cuda/device/dependent.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/tiles.cuh"
#include "cuda/launch.h"
#include "cuda/project_paths.h"
#include "duet/error.h"
#include "engine/quant_blocks.h"

namespace duet::cuda {
namespace {

static_assert(kMostParts == kMostProjectionParts);

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;

struct NarrowPart {
  const uint4* codes;
  Scales scales;
  PartOutput output;
  int first_tile_row;  // in the launch
};

struct Narrow {
  NarrowPart parts[kMostParts];
  ProjectedRows step;
  CodeTable table;
  float* partial_sums;      // [tile rows, blocks a tile row, 8 * groups, 16]
  std::uint32_t* counters;  // [tile rows]
  int part_count;
  int tile_rows;
  int tiles;              // in a tile row
  int scale_tiles_shift;  // log2 of the tiles that share a scale
  int scales_per_row;
  bool nested;
  int warps_per_tile_row;  // 4 or 8
};

// ---- storages ----

/// What the kernel must know of a storage: kBatch tiles are asked for at once, a tile is kSteps products of 16 columns.
template <Held kHeld>
struct Format;
template <>
struct Format<Held::nf4> {
  static constexpr int kBatch = 3, kSteps = 4;
  static constexpr bool kScaled = true;
};
template <>
struct Format<Held::int8> {
  static constexpr int kBatch = 3, kSteps = 2;
  static constexpr bool kScaled = true;
};
template <>
struct Format<Held::f16> {
  static constexpr int kBatch = 4, kSteps = 1;
  static constexpr bool kScaled = false;
};

/// The left operand of step kStep of a lane's 16 bytes.
template <Held kHeld, int kStep>
__device__ inline void left_operand(const uint4& piece, const ByteTable* bytes, std::uint32_t (&a)[4]) {
  if constexpr (kHeld == Held::nf4) {
    const std::uint32_t upper = kStep < 2 ? piece.x : piece.y;
    const std::uint32_t lower = kStep < 2 ? piece.z : piece.w;
    a[0] = pair_of<kStep % 2 * 2>(*bytes, upper);
    a[1] = pair_of<kStep % 2 * 2>(*bytes, lower);
    a[2] = pair_of<kStep % 2 * 2 + 1>(*bytes, upper);
    a[3] = pair_of<kStep % 2 * 2 + 1>(*bytes, lower);
  } else if constexpr (kHeld == Held::int8) {
    const std::uint32_t upper = kStep == 0 ? piece.x : piece.y;
    const std::uint32_t lower = kStep == 0 ? piece.z : piece.w;
    a[0] = halves_of<0>(upper);
    a[1] = halves_of<0>(lower);
    a[2] = halves_of<1>(upper);
    a[3] = halves_of<1>(lower);
  } else {
    a[0] = piece.x, a[1] = piece.z, a[2] = piece.y, a[3] = piece.w;
  }
}

/// A lane's columns of one row of x for a whole tile: 4 per step.
template <int kSteps>
struct RightPiece {
  std::uint32_t word[2 * kSteps];
};
template <int kSteps>
__device__ inline RightPiece<kSteps> right_piece(const __half* x, bool valid) {
  RightPiece<kSteps> piece{};
  if (!valid) return piece;
  if constexpr (kSteps == 1) {
    const uint2 two = *reinterpret_cast<const uint2*>(x);
    piece.word[0] = two.x, piece.word[1] = two.y;
  } else {
#pragma unroll
    for (int i = 0; i < kSteps / 2; ++i) {
      const uint4 four = reinterpret_cast<const uint4*>(x)[i];
      piece.word[4 * i] = four.x, piece.word[4 * i + 1] = four.y;
      piece.word[4 * i + 2] = four.z, piece.word[4 * i + 3] = four.w;
    }
  }
  return piece;
}

// ---- a batch of tiles on its way ----

/// A lane's share of kBatch neighbouring tiles. Scales of rows g and g + 8; nested: their codes' bits.
template <Held kHeld>
struct Batch {
  uint4 piece[Format<kHeld>::kBatch];
  float scale[Format<kHeld>::kBatch][2];
};

/// Where a warp reads: one row of tiles of one part.
struct TileRow {
  int part;
  int index;  // in the part
};

__device__ inline TileRow find_tile_row(const Narrow& arguments, int tile_row) {
  TileRow found{0, tile_row};
#pragma unroll
  for (int p = 1; p < kMostParts; ++p)
    if (p < arguments.part_count && tile_row >= arguments.parts[p].first_tile_row)
      found = {p, tile_row - arguments.parts[p].first_tile_row};
  return found;
}

/// The same as addresses: of this lane's 16 bytes of the first tile, and of the scale of row g in the first block.
struct Source {
  const uint4* codes;
  const std::uint8_t* scales;
};

template <Held kHeld>
__device__ inline Source source_of(const Narrow& arguments, const TileRow& at) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const NarrowPart& part = arguments.parts[at.part];
  Source source{part.codes + static_cast<std::int64_t>(at.index) * arguments.tiles * 32 + lane, nullptr};
  const std::int64_t scale = static_cast<std::int64_t>(at.index) * arguments.scales_per_row * 16 + lane / 4;
  if (Format<kHeld>::kScaled)
    source.scales =
        arguments.nested ? part.scales.codes + scale : reinterpret_cast<const std::uint8_t*>(part.scales.plain + scale);
  return source;
}

template <Held kHeld>
__device__ inline void ask_for(const Narrow& arguments, const Source& source, int first, int end, Batch<kHeld>& batch) {
  using F = Format<kHeld>;
#pragma unroll
  for (int i = 0; i < F::kBatch; ++i) {
    if (first + i >= end) break;
    batch.piece[i] = load_streaming(source.codes + (first + i) * 32);
    if constexpr (F::kScaled) {
      const int place = (first + i) >> arguments.scale_tiles_shift << 4;
      if (kHeld == Held::nf4 && arguments.nested) {
        batch.scale[i][0] = __uint_as_float(__ldg(source.scales + place));
        batch.scale[i][1] = __uint_as_float(__ldg(source.scales + place + 8));
      } else {
        batch.scale[i][0] = __ldg(reinterpret_cast<const float*>(source.scales) + place);
        batch.scale[i][1] = __ldg(reinterpret_cast<const float*>(source.scales) + place + 8);
      }
    }
  }
}

/// The scale of row g + 8 * half of tile `tile`, from what ask_for brought.
template <Held kHeld>
__device__ inline float ready_scale(const Narrow& arguments, const TileRow& at, int tile, int half, float held) {
  if (kHeld != Held::nf4 || !arguments.nested) return held;
  const Scales& scales = arguments.parts[at.part].scales;
  const int row = at.index * 16 + half * 8 + static_cast<int>(threadIdx.x) % 32 / 4;
  const std::int64_t block =
      static_cast<std::int64_t>(row) * arguments.scales_per_row + (tile >> arguments.scale_tiles_shift);
  return __fadd_rn(
      __fmul_rn(__ldg(scales.nested_map + __float_as_uint(held)), __ldg(scales.nested_scales + block / 256)),
      __ldg(scales.nested_offset));
}

// ---- kernel ----

constexpr int kSlots = 2;  // Sums of a group of 8 rows are written while those of the group before are read.

struct Shared {
  float sums[kSlots][kWarps][128];
  float replaced[kThreads];  // products of replaced matrices, by the thread that ends them
  RowAdapter adapters[kMostParts][kMostNarrowRows];
  bool is_last;
};

/// Place of (row of the tile, row of the step) among 128 sums: no two lanes of a fragment meet in a bank.
__device__ inline int place_of(int tile_row, int step_row) {
  return (step_row ^ (step_row >> 2 & 1)) * 16 + (tile_row ^ (step_row >> 1 & 1) * 8);
}

constexpr int kPrefetchedRounds = 3;

/// A warp's runs of its first rows of tiles, towards the cache: memory works on while small kernels run before this
/// one.
template <Held kHeld>
__device__ inline void prefetch_runs(const Narrow& arguments, int first_tile_row, int stride, int begin, int end) {
  if (threadIdx.x % 32 != 0 || begin >= end) return;
  for (int round = 0; round < kPrefetchedRounds; ++round) {
    const int tile_row = first_tile_row + round * stride;
    if (tile_row >= arguments.tile_rows) break;
    const Source source = source_of<kHeld>(arguments, find_tile_row(arguments, tile_row));
    prefetch_where_overlapping(source.codes + begin * 32, static_cast<std::uint32_t>((end - begin) * kTileBytes));
    if constexpr (Format<kHeld>::kScaled) {
      const int first = begin >> arguments.scale_tiles_shift;
      const int count = ((end - 1) >> arguments.scale_tiles_shift) - first + 1;
      const int bytes = arguments.nested ? 16 : 64;  // of the scales of 16 rows
      prefetch_where_overlapping(source.scales + first * bytes, static_cast<std::uint32_t>(count * bytes));
    }
  }
}

/// The rows of B that the block's first outputs need, towards the cache; an operand for each tile row and row of the
/// step.
__device__ inline void prefetch_expansion(const Narrow& arguments, int first_tile_row, int rows_here,
                                          const RowAdapter (&adapters)[kMostParts][kMostNarrowRows]) {
  for (int i = static_cast<int>(threadIdx.x); i < rows_here * kTileRows * arguments.step.row_count; i += kThreads) {
    const int tile_row = first_tile_row + i / static_cast<int>(kTileRows) % rows_here;
    if (tile_row >= arguments.tile_rows) continue;
    const TileRow at = find_tile_row(arguments, tile_row);
    const RowAdapter& adapter = adapters[at.part][i / (rows_here * static_cast<int>(kTileRows))];
    const std::int64_t output = at.index * kTileRows + i % kTileRows;
    if (adapter.rank > 0)
      prefetch(static_cast<const char*>(adapter.b) + output * adapter.rank * (adapter.b_held == Held::f32 ? 4 : 2));
  }
}

/// kGroups: groups of 8 rows of the step.
template <Held kHeld, int kGroups>
__global__ void __launch_bounds__(kThreads, kGroups == 1 ? 3 : 2)
    narrow_kernel(const __grid_constant__ Narrow arguments) {
  using F = Format<kHeld>;
  constexpr int kTileColumns = F::kSteps * 16;
  __shared__ Shared shared;
  const ByteTable* bytes = nullptr;
  if constexpr (kHeld == Held::nf4) {
    __shared__ ByteTable table;
    bytes = &table;
  }
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4;
  const int t = lane % 4;

  const int warps_here = arguments.warps_per_tile_row;
  const int rows_here = kWarps / warps_here;  // tile rows a block takes at once
  const int runs = warps_here * static_cast<int>(gridDim.y);
  const int run = static_cast<int>(blockIdx.y) * warps_here + warp % warps_here;
  const int begin = static_cast<int>(static_cast<std::int64_t>(run) * arguments.tiles / runs);
  const int end = static_cast<int>(static_cast<std::int64_t>(run + 1) * arguments.tiles / runs);
  const int stride = static_cast<int>(gridDim.x) * rows_here;
  const int first_tile_row = static_cast<int>(blockIdx.x) * rows_here + warp / warps_here;
  const int rounds = (arguments.tile_rows - static_cast<int>(blockIdx.x) * rows_here + stride - 1) / stride;

  // The weights are on their way while the rest is made ready, and x still being written.
  let_next_begin();
  Batch<kHeld> next;
  TileRow at{};
  Source source{};
  bool valid = first_tile_row < arguments.tile_rows;
  if (valid) {
    at = find_tile_row(arguments, first_tile_row);
    source = source_of<kHeld>(arguments, at);
    ask_for(arguments, source, begin, end, next);
    prefetch_runs<kHeld>(arguments, first_tile_row, stride, begin, end);
  }
  const ProjectedRows& step = arguments.step;
  if constexpr (kHeld == Held::nf4) fill(*const_cast<ByteTable*>(bytes), arguments.table);
  bool replaced = false;  // any row's matrix
  for (int i = static_cast<int>(threadIdx.x); i < arguments.part_count * step.row_count; i += kThreads) {
    const RowAdapter adapter = adapter_of(step, arguments.parts[i / step.row_count].output, i % step.row_count);
    shared.adapters[i / step.row_count][i % step.row_count] = adapter;
    replaced |= adapter.replacement != nullptr;
  }
  replaced = __syncthreads_or(replaced);
  if (step.adapters.parts != nullptr)
    prefetch_expansion(arguments, first_tile_row - warp / warps_here, rows_here, shared.adapters);
  wait_for_previous();

  const __half* x[kGroups];
#pragma unroll
  for (int n = 0; n < kGroups; ++n) x[n] = step.x + (n * 8 + g) * step.x_stride + t * (kTileColumns / 4);

  int slot = 0;
  for (int round = 0; round < rounds; ++round) {
    const TileRow here = at;
    const bool here_valid = valid;
    const int tile_row = first_tile_row + round * stride;
    valid = tile_row + stride < arguments.tile_rows && round + 1 < rounds;

    float sums[kGroups][4] = {};
    if (here_valid) {
      for (int first = begin; first < end; first += F::kBatch) {
        const Batch<kHeld> batch = next;
        if (first + F::kBatch < end) {
          ask_for(arguments, source, first + F::kBatch, end, next);
        } else if (valid) {
          at = find_tile_row(arguments, tile_row + stride);
          source = source_of<kHeld>(arguments, at);
          ask_for(arguments, source, begin, end, next);
        }
#pragma unroll
        for (int i = 0; i < F::kBatch; ++i) {
          if (first + i >= end) break;
          RightPiece<F::kSteps> right[kGroups];
#pragma unroll
          for (int n = 0; n < kGroups; ++n)
            right[n] = right_piece<F::kSteps>(x[n] + (first + i) * kTileColumns, n * 8 + g < arguments.step.row_count);
          float fragment[kGroups][4] = {};
          const auto multiply = [&]<int kStep>() {
            std::uint32_t a[4];
            left_operand<kHeld, kStep>(batch.piece[i], bytes, a);
#pragma unroll
            for (int n = 0; n < kGroups; ++n) {
              const std::uint32_t b[2] = {right[n].word[2 * kStep], right[n].word[2 * kStep + 1]};
              mma_half(F::kScaled ? fragment[n] : sums[n], a, b);
            }
          };
          multiply.template operator()<0>();
          if constexpr (F::kSteps >= 2) multiply.template operator()<1>();
          if constexpr (F::kSteps == 4) {
            multiply.template operator()<2>();
            multiply.template operator()<3>();
          }
          if constexpr (F::kScaled) {
            const float upper = ready_scale<kHeld>(arguments, here, first + i, 0, batch.scale[i][0]);
            const float lower = ready_scale<kHeld>(arguments, here, first + i, 1, batch.scale[i][1]);
#pragma unroll
            for (int n = 0; n < kGroups; ++n) {
              sums[n][0] = fmaf(fragment[n][0], upper, sums[n][0]);
              sums[n][1] = fmaf(fragment[n][1], upper, sums[n][1]);
              sums[n][2] = fmaf(fragment[n][2], lower, sums[n][2]);
              sums[n][3] = fmaf(fragment[n][3], lower, sums[n][3]);
            }
          }
        }
      }
    }

    // A thread's output: row `o` of the tile, row `column` of a group of the step, of tile row `mine`.
    const int mine = first_tile_row - warp / warps_here + round * stride + static_cast<int>(threadIdx.x) / 128;
    const int column = static_cast<int>(threadIdx.x) % 128 / 16;
    const int o = static_cast<int>(threadIdx.x) % 16;
    const bool has_output = static_cast<int>(threadIdx.x) / 128 < rows_here && mine < arguments.tile_rows;
    const TileRow out = find_tile_row(arguments, has_output ? mine : 0);
    const PartOutput& output = arguments.parts[out.part].output;

    const auto emit = [&](int n, float product) {
      const int row = n * 8 + column;
      const std::int64_t element = static_cast<std::int64_t>(out.index) * 16 + o;
      if (replaced) {  // the same in all threads
        __syncthreads();
        for (int i = warp; i < kThreads; i += kWarps) {
          const int tile = first_tile_row - warp / warps_here + round * stride + i / 128;
          const int step_row = n * 8 + i % 128 / 16;
          if (i / 128 >= rows_here || tile >= arguments.tile_rows || step_row >= step.row_count) continue;
          const TileRow where = find_tile_row(arguments, tile);
          const RowAdapter& adapter = shared.adapters[where.part][step_row];
          if (adapter.replacement == nullptr) continue;
          const float value = replaced_product(adapter, step.x + step_row * step.x_stride, step.columns,
                                               static_cast<std::int64_t>(where.index) * 16 + i % 16);
          if (lane == 0) shared.replaced[i] = value;
        }
        __syncthreads();
      }
      if (!has_output || row >= step.row_count) return;
      const RowAdapter& adapter = shared.adapters[out.part][row];
      product = adapter.replacement != nullptr ? scaled(shared.replaced[threadIdx.x], 1.0F, step.factors[row])
                                               : scaled(product, output.factor, step.factors[row]);
      float expansion = 0;
      if (adapter.rank > 0)
        expansion = expansion_of(
            adapter, step.lora + (static_cast<std::int64_t>(row) * kMostParts + output.index) * step.max_rank,
            step.max_rank, element);
      finish(output, adapter, step.add, row, element, product, expansion);
    };

#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      float* to = shared.sums[slot][warp];
      if (n * 8 + 2 * t < step.row_count) {
        to[place_of(g, 2 * t)] = sums[n][0];
        to[place_of(g, 2 * t + 1)] = sums[n][1];
        to[place_of(g + 8, 2 * t)] = sums[n][2];
        to[place_of(g + 8, 2 * t + 1)] = sums[n][3];
      }
      __syncthreads();
      float sum = 0;
      if (has_output && n * 8 + column < step.row_count)
        for (int i = 0; i < warps_here; ++i)
          sum += shared.sums[slot][static_cast<int>(threadIdx.x) / 128 * warps_here + i][place_of(o, column)];
      slot ^= 1;
      if (gridDim.y == 1) {
        emit(n, sum);
      } else if (has_output && n * 8 + column < step.row_count) {
        arguments.partial_sums
            [((static_cast<std::int64_t>(mine) * gridDim.y + blockIdx.y) * (8 * kGroups) + n * 8 + column) * 16 + o] =
            sum;
      }
    }

    if (gridDim.y > 1) {  // rows_here is 1
      __threadfence();
      __syncthreads();
      if (threadIdx.x == 0) {
        shared.is_last = atomicAdd(arguments.counters + mine, 1U) == gridDim.y - 1;
        if (shared.is_last) arguments.counters[mine] = 0;
      }
      __syncthreads();
      if (shared.is_last) {
        __threadfence();
        for (int n = 0; n < kGroups; ++n) {
          float sum = 0;
          if (has_output && n * 8 + column < step.row_count)
            for (unsigned i = 0; i < gridDim.y; ++i)
              sum +=
                  __ldcg(arguments.partial_sums +
                         ((static_cast<std::int64_t>(mine) * gridDim.y + i) * (8 * kGroups) + n * 8 + column) * 16 + o);
          emit(n, sum);
        }
      }
    }
  }
}

// ---- launcher ----

/// Blocks that make a card of today's largest kind busy; fixed, so that sums do not depend on the card.
constexpr std::int64_t kEnoughBlocks = 264;
constexpr std::int64_t kMostBlocks = 396;  // three a multiprocessor of that card
constexpr int kMostSplits = 4;

template <Held kHeld, int kGroups>
void launch(const Narrow& arguments, int splits, Stream stream) {
  const std::int64_t rows_here = kWarps / arguments.warps_per_tile_row;
  const std::int64_t wanted = (arguments.tile_rows + rows_here - 1) / rows_here;
  // As many rounds as kMostBlocks need, then no more blocks than these rounds need.
  const std::int64_t rounds = (wanted * splits + kMostBlocks - 1) / kMostBlocks;
  const dim3 grid(static_cast<unsigned>((wanted + rounds - 1) / rounds), static_cast<unsigned>(splits));
  launch_dependent(narrow_kernel<kHeld, kGroups>, grid, kThreads, stream, arguments);
}

template <Held kHeld>
void launch(const Narrow& arguments, int splits, Stream stream) {
  const int rows = arguments.step.row_count;
  if (rows <= 8) return launch<kHeld, 1>(arguments, splits, stream);
  if (rows <= 16) return launch<kHeld, 2>(arguments, splits, stream);
  launch<kHeld, 4>(arguments, splits, stream);
}

}  // namespace

NarrowSplit narrow_split(std::int64_t tile_rows, std::int64_t tiles) {
  NarrowSplit split;
  if (tile_rows >= 4 * kMostBlocks && tiles < 8 * 6) split.warps = 4;
  split.blocks =
      static_cast<int>(std::clamp<std::int64_t>(std::min(kEnoughBlocks / tile_rows, tiles / (8 * 4)), 1, kMostSplits));
  return split;
}

void project_narrow(const Projection& projection, const PartList& parts, Stream stream) {
  Narrow arguments{};
  arguments.step = rows_of(projection);
  arguments.part_count = parts.count;
  for (int i = 0; i < parts.count; ++i) {
    const ProjectionPart& part = projection.parts[parts.index[i]];
    const WeightView view = view_of(part.weight);
    arguments.parts[i] = {reinterpret_cast<const uint4*>(view.data), view.scales, output_of(projection, parts.index[i]),
                          arguments.tile_rows};
    arguments.tile_rows += static_cast<int>(view.rows / kTileRows);
    arguments.table = view.table;
  }
  const StorageSpec& spec = projection.parts[parts.index[0]].weight.matrix.spec;
  const std::int64_t width = tile_columns(spec.storage);
  arguments.tiles = static_cast<int>(projection.columns / width);
  if (is_quantised(spec.storage)) {
    arguments.scales_per_row = static_cast<int>(projection.columns / spec.block_size);
    arguments.nested = spec.nested;
    while ((width << arguments.scale_tiles_shift) < spec.block_size) ++arguments.scale_tiles_shift;
  }
  const NarrowSplit split = narrow_split(arguments.tile_rows, arguments.tiles);
  arguments.warps_per_tile_row = split.warps;
  arguments.partial_sums = projection.partial_sums;
  arguments.counters = projection.counters;
  if (is_quantised(spec.storage) && spec.storage != Storage::int8)
    return launch<Held::nf4>(arguments, split.blocks, stream);
  if (spec.storage == Storage::int8) return launch<Held::int8>(arguments, split.blocks, stream);
  launch<Held::f16>(arguments, split.blocks, stream);
}

// ---- the paths together ----

ProjectedRows rows_of(const Projection& projection) {
  ProjectedRows step{};
  step.x = reinterpret_cast<const __half*>(projection.x.x);
  step.factors = projection.x.factors;
  step.rows = projection.rows;
  step.adapters = projection.adapters;
  step.lora = projection.lora;
  step.columns = projection.columns;
  step.x_stride = prepared_stride(projection.columns);
  step.row_count = projection.row_count;
  step.max_rank = projection.max_rank;
  step.add = projection.add;
  return step;
}

PartOutput output_of(const Projection& projection, int part) {
  const ProjectionPart& own = projection.parts[part];
  return {own.bias, own.y, own.weight.matrix.rows, own.weight.factor, part, own.place, own.bias_place};
}

bool project_supports(const DeviceMatrix& weight) {
  const StorageSpec& spec = weight.matrix.spec;
  if (is_quantised(spec.storage) && !is_legal_block_size(spec.storage, spec.block_size)) return false;
  if (spec.nested && (spec.storage == Storage::int8 || !is_quantised(spec.storage))) return false;
  if (weight.arrangement == Arrangement::rows) return true;
  return spec.storage != Storage::bf16 &&
         arrangement_of(weight.matrix.rows, weight.matrix.columns, spec) == Arrangement::tiles;
}

void project(const Projection& projection, Stream stream) {
  if (projection.part_count < 1 || projection.part_count > kMostProjectionParts || projection.row_count < 0)
    throw Error(Code::unsupported, "The card's project got no parts, or too many", "Pass 1 to 3 parts");
  for (int i = 0; i < projection.part_count; ++i) {
    const DeviceMatrix& weight = projection.parts[i].weight;
    if (!project_supports(weight) || weight.matrix.columns != projection.columns)
      throw Error(Code::unsupported, "The card's project got a matrix that it has no kernel for, or of another width",
                  "Ask project_supports first, and give parts the width of x");
  }
  if (projection.row_count == 0) return;

  bool done[kMostProjectionParts] = {};
  for (int i = 0; i < projection.part_count; ++i) {
    if (done[i]) continue;
    const DeviceMatrix& weight = projection.parts[i].weight;
    if (weight.arrangement == Arrangement::rows) {
      project_rows(projection, i, stream);
      continue;
    }
    PartList together;  // parts held alike share one launch
    for (int j = i; j < projection.part_count; ++j) {
      const DeviceMatrix& other = projection.parts[j].weight;
      if (other.arrangement != Arrangement::tiles || other.matrix.spec != weight.matrix.spec) continue;
      together.index[together.count++] = j;
      done[j] = true;
    }
    if (projection.row_count <= kMostNarrowRows) {
      project_narrow(projection, together, stream);
    } else {
      project_wide(projection, together, stream);
    }
  }
}

std::size_t project_scratch_floats(std::int64_t rows, std::int64_t out) {
  // Only launches of fewer than kEnoughBlocks rows of tiles are split, and into no more blocks than make that many.
  const std::int64_t tile_rows = std::min((out + kTileRows - 1) / kTileRows * kMostSplits, kEnoughBlocks);
  const std::int64_t step_rows = std::min<std::int64_t>((rows + 7) / 8 * 8, kMostNarrowRows);
  return static_cast<std::size_t>(tile_rows * step_rows * kTileRows);
}

std::size_t project_scratch_counters(std::int64_t /*rows*/, std::int64_t out) {
  return static_cast<std::size_t>(std::min((out + kTileRows - 1) / kTileRows, kEnoughBlocks));
}

Work work_of_project(const Projection& projection) {
  Work work;
  const double rows = projection.row_count;
  for (int i = 0; i < projection.part_count; ++i) {
    const Matrix& matrix = projection.parts[i].weight.matrix;
    const MatrixLayout layout = layout_of(matrix.rows, matrix.columns, matrix.spec);
    const double out = static_cast<double>(matrix.rows);
    work.bytes_read += static_cast<double>(layout.data_bytes + layout.scales_bytes + layout.nested_scales_bytes);
    work.bytes_read += projection.add ? rows * out * sizeof(float) : 0;
    work.bytes_written += rows * out * sizeof(float);
    work.operations += 2 * rows * out * static_cast<double>(matrix.columns);
  }
  work.bytes_read += rows * static_cast<double>(projection.columns) * 2;
  return work;
}

}  // namespace duet::cuda
