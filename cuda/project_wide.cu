#include <algorithm>

#include "cuda/project_paths.h"

namespace duet::cuda {
void project_wide(const Projection& projection, const PartList& parts, Stream stream) {
  for (int first = 0; first < projection.row_count; first += kMostNarrowRows) {
    Projection slice = projection;
    slice.row_count = std::min(kMostNarrowRows, projection.row_count - first);
    slice.x.x += first * prepared_stride(projection.columns);
    slice.x.factors += first;
    slice.rows += first;
    slice.lora += static_cast<std::int64_t>(first) * kMostProjectionParts * projection.max_rank;
    for (ProjectionPart& part : slice.parts) part.y += first * part.weight.matrix.rows;
    project_narrow(slice, parts, stream);
  }
}
}  // namespace duet::cuda
