#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/weights.h"
#include "loaders/safetensors.h"

/// bitsandbytes 4-bit tensors in safetensors: for `x.weight` of [rows, columns] the file holds
///   x.weight                                  ceil(rows * columns / 2) bytes of codes, in any dtype of that many bytes
///   x.weight.absmax                           F32 [blocks]; U8 [blocks] when nested
///   x.weight.quant_map                        F32 [16], the code table
///   x.weight.nested_absmax, .nested_quant_map F32 [ceil(blocks / 256)], F32 [256]; nested only
///   x.weight.quant_state.bitsandbytes__nf4    U8: JSON with quant_type, blocksize, dtype, shape, nested_* (or __fp4)
/// Source: QuantState.as_dict in bitsandbytes/functional.py.
namespace duet::loaders {

/// Finds a tensor by its full name; null when the checkpoint has none.
using TensorLookup = std::function<const Tensor*(std::string_view name)>;

/// The JSON item, checked.
struct Bnb4State {
  Storage storage = Storage::nf4;
  int block_size = 64;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  bool nested = false;
  float nested_offset = 0;
};

/// `storage` is what the item's name says; `source` names file and tensor in messages. Throws Error(bad_file), and
/// Error(unsupported) for a block size that is not legal.
Bnb4State parse_bnb4_state(std::string_view json, Storage storage, std::string_view source);

/// One quantised tensor: every part found and its dtype, shape and code table checked.
struct Bnb4Tensor {
  Tensor codes;
  Tensor absmax;  ///< Scales, or their 8-bit codes when nested.
  std::optional<Tensor> nested_absmax;
  std::optional<Tensor> nested_map;
  Bnb4State state;

  StorageSpec spec() const { return {state.storage, state.block_size, state.nested}; }
};

/// The names that may stand beside `weight` in a 4-bit checkpoint.
std::vector<std::string> bnb4_companions(std::string_view weight);

/// Whether anything in the checkpoint says that `weight` is 4-bit. The tensors decide, not the config.
bool is_bnb4(const TensorLookup& find, std::string_view weight);

/// Throws Error(bad_file) naming the part that is missing, doubled, misshapen or contradicts another, or when the shape
/// is not [rows, columns].
Bnb4Tensor open_bnb4(const TensorLookup& find, std::string_view weight, std::int64_t rows, std::int64_t columns);

/// Fills a region laid out by layout_of(rows, columns, tensor.spec()). Throws Error(non_finite) naming the part.
void read_bnb4(const Bnb4Tensor& tensor, std::span<std::byte> region);

}  // namespace duet::loaders
