#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "loaders/mapped_file.h"

/// safetensors: an 8-byte little-endian header length, a JSON header of that many bytes, then the tensors.
/// Format: https://github.com/huggingface/safetensors ("Format").
namespace duet::loaders {

enum class Dtype : std::uint8_t { f64, f32, f16, bf16, i64, i32, i16, i8, u64, u32, u16, u8, boolean };

std::string_view name_of(Dtype dtype);  ///< As files spell it: "F32", "BF16", "BOOL".
std::size_t size_of(Dtype dtype);       ///< Bytes of one element.
bool is_float(Dtype dtype);

/// One tensor of a file. Copies are cheap; `file` keeps the file open.
struct Tensor {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<std::int64_t> shape;  ///< Empty: a scalar, one element.
  std::int64_t elements = 1;        ///< Product of the shape.
  std::uint64_t offset = 0;         ///< Of its first byte in the file.
  std::uint64_t bytes = 0;          ///< elements * size_of(dtype).
  std::shared_ptr<const MappedFile> file;

  /// The tensor in the mapping: not aligned, and to be read only after file->check_unchanged().
  std::span<const std::byte> data() const { return file->bytes().subspan(offset, bytes); }
};

/// "[128, 64]".
std::string shape_text(const std::vector<std::int64_t>& shape);

/// "'model.safetensors': tensor 'x'", for messages.
std::string where(const Tensor& tensor);

/// Copies bytes [first, first + destination.size()) of the tensor. Throws Error(bad_file) when the file got shorter.
void read_bytes(const Tensor& tensor, std::uint64_t first, std::span<std::byte> destination);

/// Elements [first, first + destination.size()) of the flattened tensor as float32: F64 rounded to nearest, 16-bit
/// floats exact, integers rounded to nearest, BOOL as 0 and 1. NaN and infinities of the file stay what they are; a
/// finite F64 beyond float32 throws Error(non_finite) with the element's index.
void read_floats(const Tensor& tensor, std::int64_t first, std::span<float> destination);

/// One file, its header checked: every length, offset, shape and name; tensors fill the data part with no overlap, hole
/// or rest, as the format demands. Throws Error(bad_file) naming file, tensor and field; Error(unsupported) for a dtype
/// that is not in `Dtype`. Values of `__metadata__` must be strings.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path, Symlinks symlinks = Symlinks::follow);

  const std::vector<Tensor>& tensors() const { return tensors_; }  ///< In the order of the header.
  const Tensor* find(std::string_view name) const;                 ///< Null when absent.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::shared_ptr<const MappedFile>& file() const { return file_; }

 private:
  std::shared_ptr<const MappedFile> file_;
  std::vector<Tensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
};

/// The weights of a Hugging Face folder: `model.safetensors`, else the shards named by `model.safetensors.index.json`.
/// Throws Error(not_found) saying which files were looked for and what lies there instead, Error(bad_file) when index
/// and shards disagree in either direction.
///
/// Shard names must be plain names inside the folder. A shard may be a symbolic link (hub caches are made of them) when
/// its target lies in the folder itself, or in `blobs` of the hub cache repository to which the folder belongs
/// (`<repository>/snapshots/<revision>`); another target is never opened. The folder, and the one name we ask for
/// ourselves (`model.safetensors`), may be links to anywhere: they are the user's choice, not the file's.
class SafetensorsSet {
 public:
  explicit SafetensorsSet(const std::filesystem::path& folder);

  const std::vector<Tensor>& tensors() const { return tensors_; }  ///< Files by name, then in the order of the header.
  const Tensor* find(std::string_view name) const;                 ///< Null when absent.
  const std::vector<std::shared_ptr<const MappedFile>>& files() const { return files_; }

 private:
  void add(const SafetensorsFile& file);

  std::vector<Tensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::vector<std::shared_ptr<const MappedFile>> files_;
};

}  // namespace duet::loaders
