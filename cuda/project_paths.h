#pragma once

#include "cuda/launch.h"

/// The paths of `project`, and how it splits sums. Internal to the matrix kernels.
namespace duet::cuda {

/// Some parts of a Projection, by index.
struct PartList {
  int index[kMostProjectionParts] = {};
  int count = 0;
};

constexpr int kMostNarrowRows = 32;

/// project.cu: tiles of one storage and block size, up to kMostNarrowRows rows.
void project_narrow(const Projection& projection, const PartList& parts, Stream stream);
/// project_wide.cu: likewise, any number of rows.
void project_wide(const Projection& projection, const PartList& parts, Stream stream);
/// project_rows.cu: one matrix arranged in rows, any storage and shape.
void project_rows(const Projection& projection, int part, Stream stream);

/// prepare.cu: lora_shrink of up to kMostNarrowRows rows; the same bits as beside the preparation of its x.
void lora_shrink_few(const Projection& projection, Stream stream);

/// How the narrow path cuts the sums of a launch: by its shape alone, so that a row's bits do not depend on the others.
struct NarrowSplit {
  int warps = 8;   ///< Warps of a block that share a row of tiles.
  int blocks = 1;  ///< Blocks that share a row of tiles.
};
/// `tile_rows`: rows of tiles of all parts; `tiles`: tiles in each.
NarrowSplit narrow_split(std::int64_t tile_rows, std::int64_t tiles);

}  // namespace duet::cuda
