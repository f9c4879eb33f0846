// Attention of a chunk of one sequence: each of its rows sees the pages up to itself, so it is a decode row.
#include <algorithm>

#include "cuda/launch.h"

namespace duet::cuda {

void attend_prefill(const Attention& attention, std::int64_t /*first_position*/, Stream stream) {
  const std::int64_t width = std::int64_t{attention.query_heads} * attention.kv.head_size;
  for (int first = 0; first < attention.row_count; first += attention.scratch_rows) {
    Attention slice = attention;
    slice.row_count = std::min(attention.scratch_rows, attention.row_count - first);
    slice.query += first * width;
    slice.out += first * width;
    slice.rows += first;
    attend_decode(slice, stream);
  }
}

}  // namespace duet::cuda
