#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "loaders/safetensors.h"

/// Files of torch.save (PyTorch 1.6 and later): a zip archive with a pickle, `<prefix>/data.pkl`, and one entry
/// `<prefix>/data/<key>` for the bytes of each storage. A pickle is a program. This reader runs none of it: it knows
/// the few opcodes and the eight names that torch writes for plain data and tensors, and refuses everything else.
namespace duet::loaders {

struct TorchItem;

/// One value of such a file, plain data. Tuples are lists; an OrderedDict is a dict, its `_metadata` left out; a
/// Parameter is its tensor.
struct TorchValue {
  enum class Kind : std::uint8_t { none, boolean, integer, real, text, list, dict, tensor };
  using List = std::vector<TorchValue>;
  using Dict = std::vector<TorchItem>;  ///< In file order; no key stands twice.

  /// The alternatives stand in the order of `Kind`.
  std::variant<std::monostate, bool, std::int64_t, double, std::string, List, Dict, Tensor> data;

  Kind kind() const { return static_cast<Kind>(data.index()); }
  const TorchValue* find(std::string_view key) const;  ///< Null when this is no dict or has no such key.
};

struct TorchItem {
  std::string key;
  TorchValue value;
};

std::string_view name_of(TorchValue::Kind kind);  ///< For messages: "none", "a boolean", "a dict".

/// What `path` holds. A tensor is named by the keys that lead to it ("head.q.weight", in lists "layers.0"), has a dtype
/// of F64, F32, F16, BF16 or I64, and is contiguous; its bytes stay in the file (safetensors.h: data, read_bytes,
/// read_floats), checked against the archive's CRC-32.
///
/// Throws Error(not_found) when there is no such file; Error(bad_file) when it contradicts its format;
/// Error(unsupported) naming what Duet does not read: an opcode or a name of the pickle with its byte offset,
/// compressed entries, big-endian bytes, a tensor that is not contiguous, dict keys that are no text, integers beyond
/// 64 bits. Bounds: 64 MiB of file, 4 MiB of pickle, 2^18 objects and memo entries in it, 2^16 values in the result
/// with 16 MiB of text, 32 levels.
TorchValue read_torch_file(const std::filesystem::path& path);

/// All elements of an F32, F16, BF16 or F64 tensor, as read_floats gives them. Throws Error(unsupported) for I64.
std::vector<float> to_floats(const Tensor& tensor);

}  // namespace duet::loaders
