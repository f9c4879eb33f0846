#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/adapter.h"
#include "engine/model.h"

/// Where a backend gets bytes from: implemented by loaders, used by plan and backends.
namespace duet {

/// One tensor as it will lie in memory.
struct WeightTensor {
  TensorRow row;
  StorageSpec storage;
  std::size_t bytes = 0;  ///< layout_of(row.rows, row.columns, storage).bytes
};

/// Receives a tensor as it lies in its file, front to back.
class StoredSink {
 public:
  virtual ~StoredSink() = default;
  /// Where the bytes from `offset` on go: as many as are wanted at once, at least one.
  virtual std::span<std::byte> room(std::size_t offset) = 0;
  /// The first `bytes` of the room asked for last are filled.
  virtual void filled(std::size_t bytes) = 0;
};

/// An opened checkpoint (Hugging Face folder or packed file): headers read and checked, data mapped, nothing copied.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual const ModelSpec& spec() const = 0;
  virtual const std::string& name() const = 0;  ///< Path, for messages.
  /// Same text, same weights in memory: content identity of the files and of the storage chosen. Cheap (no full read):
  /// resolved paths, sizes, times and headers. Models with equal identity share one copy.
  virtual const std::string& identity() const = 0;
  virtual const std::vector<WeightTensor>& tensors() const = 0;  ///< In the order of tensors_of(spec()).
  /// Fills `region` (exactly tensors()[index].bytes) in the layout of `layout_of`, quantising when asked for.
  /// Throws Error(bad_file) on checksum failure, Error(non_finite) naming the tensor when a value cannot be held.
  /// Thread-safe.
  virtual void read(std::size_t index, std::span<std::byte> region) const = 0;
  /// How the file holds the tensor, when `stream` can hand it out as it lies there (in the layout of `layout_of`); it
  /// need not be the storage asked for.
  virtual std::optional<StorageSpec> stored(std::size_t /*index*/) const { return std::nullopt; }
  /// Hands out all bytes of `layout_of(rows, columns, *stored(index))`. Throws Error(bad_file) on checksum failure,
  /// after the last byte at the latest; says nothing about values that are not finite. Thread-safe; only where
  /// `stored`.
  virtual void stream(std::size_t index, StoredSink& sink) const;
  virtual const std::vector<std::string>& report()
      const = 0;  ///< Notes: defaults taken, tensors unused, disagreements.
};

/// An opened PEFT adapter, checked against its base.
class AdapterSource {
 public:
  virtual ~AdapterSource() = default;
  virtual const AdapterSpec& spec() const = 0;
  virtual const std::string& name() const = 0;  ///< Path, for messages.
  virtual void read(std::size_t tensor_index,
                    std::span<std::byte> destination) const = 0;  ///< spec().tensors[tensor_index].bytes
  virtual const std::vector<std::string>& report() const = 0;
};

}  // namespace duet
