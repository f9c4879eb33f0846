#include "engine/adapter.h"

#include <fmt/format.h>

#include <algorithm>

#include "duet/error.h"

namespace duet {

namespace {

constexpr std::int64_t kMostElements = std::int64_t{1} << 48;  // Far below what the sums here could wrap at.

std::size_t element_bytes(Storage storage) {
  switch (storage) {
    case Storage::f32:
      return 4;
    case Storage::f16:
    case Storage::bf16:
      return 2;
    default:
      throw Error(Code::internal, fmt::format("An adapter tensor cannot be held as {}", name_of(storage)));
  }
}

/// Of the model's own layers; adapters of hybrids are on the small matrices too.
bool is_projection(const TensorRow& row) {
  return row.layer >= 0 &&
         (row.role == TensorRole::linear || row.part == Part::delta_decay || row.part == Part::delta_rate);
}

}  // namespace

bool AdapterSpec::has_dora() const {
  return std::any_of(modules.begin(), modules.end(), [](const AdapterModule& module) { return module.dora; });
}

void lay_out(AdapterSpec& spec) {
  std::size_t end = 0;
  for (AdapterTensor& tensor : spec.tensors) {
    std::int64_t elements = 0;
    if (tensor.rows < 0 || tensor.columns < 0 || __builtin_mul_overflow(tensor.rows, tensor.columns, &elements) ||
        elements > kMostElements) {
      throw Error(Code::no_room, fmt::format("An adapter tensor has {} x {} elements; at most 2^48 are possible",
                                             tensor.rows, tensor.columns));
    }
    tensor.offset = (end + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
    tensor.bytes = static_cast<std::size_t>(elements) * element_bytes(tensor.storage);
    end = tensor.offset + tensor.bytes;
  }
  spec.bytes = end;
}

std::size_t slot_bytes_for_rank(const ModelSpec& spec, int rank) {
  if (rank < 1)
    throw Error(Code::invalid_argument, fmt::format("An adapter of rank {} was asked for", rank), "Use 1 or more");
  AdapterSpec full;
  for (const TensorRow& row : tensors_of(spec)) {
    if (!is_projection(row)) continue;
    full.tensors.push_back({.kind = AdapterTensorKind::lora_a,
                            .part = row.part,
                            .layer = row.layer,
                            .rows = rank,
                            .columns = row.columns});
    full.tensors.push_back(
        {.kind = AdapterTensorKind::lora_b, .part = row.part, .layer = row.layer, .rows = row.rows, .columns = rank});
  }
  lay_out(full);
  return full.bytes;
}

}  // namespace duet
