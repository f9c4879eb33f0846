#include "cuda/weights.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "duet/error.h"
#include "engine/half.h"

namespace duet::cuda {
namespace {

bool is_16bit(Storage storage) { return storage == Storage::f16 || storage == Storage::bf16; }

/// One tensor on its way to its place.
class TensorLoad final : private StoredSink {
 public:
  TensorLoad(const WeightTensor& tensor, const LoadBuffers& buffers, DeviceMatrix& target)
      : tensor_(tensor), buffers_(buffers), target_(target), region_(const_cast<std::byte*>(target.matrix.data)) {}

  void run(const WeightSource& source, std::size_t index) {
    const std::optional<StorageSpec> stored = source.stored(index);
    if (target_.arrangement == Arrangement::tiles && stored && way_of(*stored) != Way::whole) {
      stored_ = *stored;
      way_ = way_of(stored_);
      load_pieces(source, index);
    } else {
      load_whole(source, index);
    }
    DUET_CUDA(cudaStreamSynchronize(buffers_.stream));
  }

 private:
  enum class Way { whole, blocks, sixteen_bits, quantise };

  /// How a tensor that is stored as `from` gets into tiles.
  Way way_of(const StorageSpec& from) const {
    const StorageSpec& to = tensor_.storage;
    if (from == to) return is_quantised(to.storage) ? Way::blocks : Way::sixteen_bits;
    if (is_quantised(to.storage) && !to.nested && quantise_supports(from.storage, to)) return Way::quantise;
    return Way::whole;
  }

  // ---- the file's bytes, in pieces ----

  void load_pieces(const WeightSource& source, std::size_t index) {
    layout_ = layout_of(tensor_.row.rows, tensor_.row.columns, stored_);
    if (way_ == Way::sixteen_bits) {
      // The power of two that bf16 needs is known when all of it was seen; f16 is looked through for NaN likewise.
      measuring_ = true;
      DUET_CUDA(cudaMemsetAsync(buffers_.staging.largest.data(), 0, sizeof(float), buffers_.stream));
      source.stream(index, *this);
      const float largest = fetch(buffers_.staging.largest.data());
      if (!std::isfinite(largest)) refuse_non_finite(source, index);
      if (stored_.storage == Storage::bf16 && largest > 0) target_.factor = std::ldexp(1.0F, std::ilogb(largest) - 14);
      measuring_ = false;
    }
    if (way_ == Way::quantise) {
      const std::int64_t none = -1;
      DUET_CUDA(cudaMemcpyAsync(buffers_.staging.first_bad.data(), &none, sizeof(none), cudaMemcpyHostToDevice,
                                buffers_.stream));
    }
    source.stream(index, *this);
    if (way_ == Way::quantise && fetch(buffers_.staging.first_bad.data()) != -1) refuse_non_finite(source, index);
  }

  std::span<std::byte> room(std::size_t offset) override {
    offset_ = offset;
    turn_ ^= 1;
    DUET_CUDA(cudaEventSynchronize(buffers_.copied[turn_]));
    std::size_t most = buffers_.pinned[turn_].size();
    if (offset < layout_.data_bytes) {
      const std::size_t group = static_cast<std::size_t>(kTileRows) * row_bytes();
      most = std::min(most / group * group, layout_.data_bytes - offset);
    } else if (offset < layout_.scales_offset) {
      most = layout_.scales_offset - offset;
    } else if (offset < layout_.scales_offset + layout_.scales_bytes) {
      const std::size_t group = static_cast<std::size_t>(kTileRows * blocks_per_row()) * scale_bytes();
      most = std::min(most / group * group, layout_.scales_offset + layout_.scales_bytes - offset);
    }
    return buffers_.pinned[turn_].first(most);
  }

  void filled(std::size_t bytes) override {
    std::byte* const raw = buffers_.staging.raw.data();
    const bool straight = offset_ >= layout_.data_bytes && !in_scales();
    std::byte* const destination = straight ? region_ + offset_ : raw;
    DUET_CUDA(
        cudaMemcpyAsync(destination, buffers_.pinned[turn_].data(), bytes, cudaMemcpyHostToDevice, buffers_.stream));
    DUET_CUDA(cudaEventRecord(buffers_.copied[turn_], buffers_.stream));
    if (straight) return;  // Padding and nested scales lie as they are.
    if (measuring_) {
      largest_magnitude(raw, stored_.storage, static_cast<std::int64_t>(bytes / 2), buffers_.staging.largest.data(),
                        buffers_.stream);
      return;
    }
    place_rows(raw, bytes);
  }

  bool in_scales() const {
    return is_quantised(stored_.storage) && offset_ >= layout_.scales_offset &&
           offset_ < layout_.scales_offset + layout_.scales_bytes;
  }
  std::size_t row_bytes() const { return layout_.data_bytes / static_cast<std::size_t>(tensor_.row.rows); }
  std::int64_t blocks_per_row() const { return tensor_.row.columns / stored_.block_size; }
  std::size_t scale_bytes() const { return stored_.nested ? 1 : sizeof(float); }

  /// Puts whole rows, or their scales, in tiles.
  void place_rows(std::byte* raw, std::size_t bytes) {
    Matrix rows;
    rows.columns = tensor_.row.columns;
    rows.spec = stored_;
    std::int64_t first = 0;
    if (offset_ < layout_.data_bytes) {
      first = static_cast<std::int64_t>(offset_ / row_bytes());
      rows.rows = static_cast<std::int64_t>(bytes / row_bytes());
      rows.data = raw;
      if (way_ == Way::quantise) rows = quantised(raw, rows.rows);
    } else {
      const std::size_t bytes_of_row = static_cast<std::size_t>(blocks_per_row()) * scale_bytes();
      first = static_cast<std::int64_t>((offset_ - layout_.scales_offset) / bytes_of_row);
      rows.rows = static_cast<std::int64_t>(bytes / bytes_of_row);
      if (stored_.nested)
        rows.scale_codes = reinterpret_cast<const std::uint8_t*>(raw);
      else
        rows.scales = reinterpret_cast<const float*>(raw);
    }
    tile(rows, target_, first, buffers_.stream);
  }

  Matrix quantised(const std::byte* raw, std::int64_t row_count) {
    quantise(raw, stored_.storage, row_count, tensor_.row.columns, tensor_.storage, buffers_.staging.blocks.data(),
             buffers_.staging.first_bad.data(), buffers_.stream);
    return view_of(row_count, tensor_.row.columns, tensor_.storage, buffers_.staging.blocks.data());
  }

  // ---- tensors that the loader must make ----

  void load_whole(const WeightSource& source, std::size_t index) {
    std::vector<std::byte> bytes(tensor_.bytes);
    source.read(index, bytes);
    stored_ = tensor_.storage;
    if (target_.arrangement == Arrangement::rows) {
      copy_up(bytes);
      return;
    }
    layout_ = layout_of(tensor_.row.rows, tensor_.row.columns, stored_);
    way_ = way_of(stored_);
    if (stored_.storage == Storage::bf16) {
      float largest = 0;
      for (std::size_t i = 0; i + 1 < bytes.size(); i += 2) {
        std::uint16_t word = 0;
        std::memcpy(&word, bytes.data() + i, sizeof(word));
        largest = std::max(largest, std::fabs(to_float(static_cast<Bfloat16>(word))));
      }
      if (largest > 0) target_.factor = std::ldexp(1.0F, std::ilogb(largest) - 14);
    }
    for (std::size_t done = 0; done < bytes.size();) {
      const std::span<std::byte> to = room(done);
      const std::size_t count = std::min(to.size(), bytes.size() - done);
      std::memcpy(to.data(), bytes.data() + done, count);
      filled(count);
      done += count;
    }
  }

  void copy_up(std::span<const std::byte> bytes) {
    for (std::size_t done = 0; done < bytes.size();) {
      turn_ ^= 1;
      DUET_CUDA(cudaEventSynchronize(buffers_.copied[turn_]));
      const std::size_t count = std::min(buffers_.pinned[turn_].size(), bytes.size() - done);
      std::memcpy(buffers_.pinned[turn_].data(), bytes.data() + done, count);
      DUET_CUDA(
          cudaMemcpyAsync(region_ + done, buffers_.pinned[turn_].data(), count, cudaMemcpyDefault, buffers_.stream));
      DUET_CUDA(cudaEventRecord(buffers_.copied[turn_], buffers_.stream));
      done += count;
    }
  }

  /// The source's own loader says which value it is.
  [[noreturn]] void refuse_non_finite(const WeightSource& source, std::size_t index) const {
    std::vector<std::byte> bytes(tensor_.bytes);
    source.read(index, bytes);
    throw Error(Code::non_finite, fmt::format("{}: {} holds NaN or infinity", source.name(), tensor_.row.name),
                "The checkpoint is damaged or was saved after training diverged; take another copy");
  }

  template <class T>
  T fetch(const T* device) const {
    T value{};
    DUET_CUDA(cudaMemcpyAsync(&value, device, sizeof(T), cudaMemcpyDeviceToHost, buffers_.stream));
    DUET_CUDA(cudaStreamSynchronize(buffers_.stream));
    return value;
  }

  const WeightTensor& tensor_;
  const LoadBuffers& buffers_;
  DeviceMatrix& target_;
  std::byte* region_;
  StorageSpec stored_;
  MatrixLayout layout_;
  Way way_ = Way::whole;
  bool measuring_ = false;
  std::size_t offset_ = 0;
  int turn_ = 0;
};

}  // namespace

BaseWeights bind_weights(const PlannedBase& base, std::byte* arena, std::byte* host_embedding) {
  BaseWeights weights;
  weights.places.resize(places_of(base.spec));
  for (std::size_t i = 0; i < base.tensors.size(); ++i) {
    const WeightTensor& tensor = base.tensors[i];
    const bool on_host = tensor.row.part == Part::embedding && base.embedding_on_host;
    std::byte* const region = on_host ? host_embedding : arena + base.regions[i].offset;
    DeviceMatrix& place = weights.places[place_of(tensor.row.part, tensor.row.layer)];
    place.matrix = view_of(tensor.row.rows, tensor.row.columns, tensor.storage, region);
    const bool vector = tensor.row.role == TensorRole::vector;
    place.arrangement =
        vector || on_host ? Arrangement::rows : arrangement_of(tensor.row.rows, tensor.row.columns, tensor.storage);
    if (place.arrangement == Arrangement::tiles && is_16bit(tensor.storage.storage))
      place.matrix.spec.storage = Storage::f16;
  }
  if (base.spec.tied_head) weights.places[place_of(Part::head, -1)] = weights.at(Part::embedding, -1);
  return weights;
}

void load_weights(const PlannedBase& base, const WeightSource& source, const LoadBuffers& buffers, BaseWeights& weights,
                  const LoadProgress& progress) {
  std::uint64_t total = 0;
  for (const WeightTensor& tensor : base.tensors) total += tensor.bytes;
  std::uint64_t done = 0;
  for (std::size_t i = 0; i < base.tensors.size(); ++i) {
    const TensorRow& row = base.tensors[i].row;
    TensorLoad(base.tensors[i], buffers, weights.places[place_of(row.part, row.layer)]).run(source, i);
    done += base.tensors[i].bytes;
    if (progress) progress(done, total);
  }
  if (base.spec.tied_head) weights.places[place_of(Part::head, -1)] = weights.at(Part::embedding, -1);
}

}  // namespace duet::cuda
