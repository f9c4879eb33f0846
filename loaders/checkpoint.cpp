#include "loaders/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <variant>

#include "duet/error.h"
#include "engine/quant_blocks.h"
#include "loaders/bnb4.h"
#include "loaders/checksum.h"
#include "loaders/hf_config.h"
#include "loaders/hf_quantisation.h"
#include "loaders/laya_config.h"
#include "loaders/names.h"
#include "loaders/packed_header.h"
#include "loaders/quantise.h"
#include "loaders/safetensors.h"
#include "loaders/storage_choice.h"
#include "loaders/tensor_match.h"

namespace duet::loaders {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kCopyBytes = std::size_t{4} << 20;

// ---- dense tensors ----

StorageSpec dense_storage(const Tensor& tensor) {
  switch (tensor.dtype) {
    case Dtype::f16:
      return {Storage::f16, 0, false};
    case Dtype::bf16:
      return {Storage::bf16, 0, false};
    default:
      return {Storage::f32, 0, false};  // F64 is rounded on reading.
  }
}

void check_dense(const Tensor& tensor, const TensorRow& row) {
  if (!is_float(tensor.dtype))
    throw Error(Code::unsupported,
                fmt::format("{} holds {} and no 4-bit scales stand beside it", where(tensor), name_of(tensor.dtype)),
                "Duet reads float and bitsandbytes 4-bit checkpoints; load the 16-bit one and let Duet quantise it");
  const std::vector<std::int64_t> shape = shape_in_files(row);
  if (tensor.shape != shape)
    throw Error(Code::bad_file,
                fmt::format("{} has the shape {}; the config asks for {}", where(tensor), shape_text(tensor.shape),
                            shape_text(shape)),
                "Does config.json belong to these weights?");
}

/// Copies 16-bit values as they are; NaN and infinity, an exponent of all ones, are refused.
void copy_16bit(const Tensor& tensor, std::int64_t columns, std::uint16_t exponent, std::span<std::byte> region) {
  for (std::size_t done = 0; done < region.size(); done += kCopyBytes) {
    const std::span<std::byte> piece = region.subspan(done, std::min(kCopyBytes, region.size() - done));
    read_bytes(tensor, done, piece);
    const std::span words(reinterpret_cast<const std::uint16_t*>(piece.data()), piece.size() / 2);
    unsigned bad = 0;
    for (const std::uint16_t word : words) bad |= (word & exponent) == exponent ? 1U : 0U;
    if (bad == 0) continue;
    const auto first =
        std::find_if(words.begin(), words.end(), [&](std::uint16_t word) { return (word & exponent) == exponent; });
    const auto element = static_cast<std::int64_t>(done / 2) + (first - words.begin());
    throw Error(Code::non_finite,
                fmt::format("{} holds NaN or infinity at row {}, column {}", where(tensor), element / columns,
                            element % columns),
                "The checkpoint is damaged or was saved after training diverged; take another copy");
  }
}

void read_dense(const Tensor& tensor, const WeightTensor& target, std::span<std::byte> region) {
  constexpr std::uint16_t kHalfExponent = 0x7C00, kBfloat16Exponent = 0x7F80;
  if (tensor.dtype == Dtype::f16 && target.storage.storage == Storage::f16)
    return copy_16bit(tensor, target.row.columns, kHalfExponent, region);
  if (tensor.dtype == Dtype::bf16 && target.storage.storage == Storage::bf16)
    return copy_16bit(tensor, target.row.columns, kBfloat16Exponent, region);
  store_matrix([&](std::int64_t first, std::span<float> values) { read_floats(tensor, first, values); },
               target.row.rows, target.row.columns, target.storage, region, where(tensor));
}

// ---- 4-bit tensors ----

void read_4bit(const Bnb4Tensor& tensor, const WeightTensor& target, std::span<std::byte> region) {
  if (target.storage == tensor.spec()) return read_bnb4(tensor, region);
  const TensorRow& row = target.row;
  std::vector<std::byte> stored(layout_of(row.rows, row.columns, tensor.spec()).bytes);
  read_bnb4(tensor, stored);
  const Matrix matrix = view_of(row.rows, row.columns, tensor.spec(), stored.data());
  store_matrix([&](std::int64_t first, std::span<float> values) { dequantise(matrix, first, values); }, row.rows,
               row.columns, target.storage, region, where(tensor.codes));
}

// ---- the folder ----

class HfCheckpoint final : public WeightSource {
 public:
  HfCheckpoint(const fs::path& folder, const WeightOptions& options) : name_(folder.string()), files_(folder) {
    check_options(options);
    spec_ = is_laya_folder(folder) ? read_laya_config(folder, report_) : read_hf_config(folder, report_);
    open_tensors(options);
    note_ignored_options(options, spec_.tied_head, report_);
    compare_with_config(folder);
    identify(folder);
  }

  const ModelSpec& spec() const override { return spec_; }
  const std::string& name() const override { return name_; }
  const std::string& identity() const override { return identity_; }
  const std::vector<WeightTensor>& tensors() const override { return tensors_; }
  const std::vector<std::string>& report() const override { return report_; }

  void read(std::size_t index, std::span<std::byte> region) const override {
    const WeightTensor& target = tensors_.at(index);
    if (region.size() != target.bytes)
      throw Error(Code::internal, fmt::format("{} was given a region of {} bytes and has {}", quote(target.row.name),
                                              region.size(), target.bytes));
    if (const auto* dense = std::get_if<Tensor>(&stored_[index])) return read_dense(*dense, target, region);
    read_4bit(std::get<Bnb4Tensor>(stored_[index]), target, region);
  }

  std::optional<StorageSpec> stored(std::size_t index) const override {
    const auto* dense = std::get_if<Tensor>(&stored_.at(index));
    if (dense == nullptr) return std::nullopt;
    const bool as_it_lies = dense->dtype == Dtype::f32 || dense->dtype == Dtype::f16 || dense->dtype == Dtype::bf16;
    return as_it_lies ? std::optional(dense_storage(*dense)) : std::nullopt;
  }

  void stream(std::size_t index, StoredSink& sink) const override {
    const Tensor& tensor = std::get<Tensor>(stored_.at(index));
    for (std::size_t done = 0; done < tensor.bytes;) {
      std::span<std::byte> part = sink.room(done);
      part = part.first(std::min<std::size_t>(part.size(), tensor.bytes - done));
      read_bytes(tensor, done, part);
      sink.filled(part.size());
      done += part.size();
    }
  }

 private:
  using Stored = std::variant<Tensor, Bnb4Tensor>;

  void open_tensors(const WeightOptions& options) {
    const TensorLookup find = [this](std::string_view name) { return files_.find(name); };
    const std::vector<TensorRow> rows = tensors_of(spec_);
    const std::vector<std::string> held = names_without_companions();
    const TensorMatch match = match_tensors(rows, spec_, held, name_);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const TensorRow& row = rows[i];
      StorageSpec stored;
      if (row.role != TensorRole::vector && is_bnb4(find, match.names[i])) {
        Bnb4Tensor tensor = open_bnb4(find, match.names[i], row.rows, row.columns);
        stored = tensor.spec();
        stored_.emplace_back(std::move(tensor));
      } else {
        const Tensor& tensor = *files_.find(match.names[i]);
        check_dense(tensor, row);
        stored = dense_storage(tensor);
        stored_.emplace_back(tensor);
      }
      const StorageSpec storage = chosen_storage(row, stored, options, fmt::format("{}: {}", quote(name_), row.name));
      tensors_.push_back({row, storage, layout_of(row.rows, row.columns, storage).bytes});
    }
    report_.push_back(fmt::format("{} of {} tensors used", rows.size(), held.size()));
    report_.insert(report_.end(), match.notes.begin(), match.notes.end());
  }

  /// Names of the tensors that are no part of another one's 4-bit state.
  std::vector<std::string> names_without_companions() const {
    std::set<std::string, std::less<>> companions;
    for (const Tensor& tensor : files_.tensors())
      for (std::string& name : bnb4_companions(tensor.name)) companions.insert(std::move(name));
    std::vector<std::string> names;
    for (const Tensor& tensor : files_.tensors())
      if (!companions.contains(tensor.name)) names.push_back(tensor.name);
    return names;
  }

  /// The tensors decide; where the config's list says otherwise, the report does.
  void compare_with_config(const fs::path& folder) {
    if (spec_.kind == ModelKind::encoder) return;  // Laya is published in 16 bit alone.
    const auto quantised = read_quantisation(folder);
    std::vector<std::string> dense_unlisted, quantised_listed;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const TensorRow& row = tensors_[i].row;
      if (row.role != TensorRole::linear) continue;
      const bool is_4bit = std::holds_alternative<Bnb4Tensor>(stored_[i]);
      const bool listed_4bit = quantised && !is_skipped(*quantised, row.name);
      if (is_4bit && !listed_4bit) quantised_listed.push_back(row.name);
      if (!is_4bit && listed_4bit) dense_unlisted.push_back(row.name);
    }
    if (!dense_unlisted.empty())
      report_.push_back(fmt::format("{} dense in the file, though quantization_config does not list them as skipped",
                                    listed(dense_unlisted)));
    if (!quantised_listed.empty())
      report_.push_back(
          fmt::format("{} 4-bit in the file, though config.json says they are not", listed(quantised_listed)));
  }

  void identify(const fs::path& folder) {
    std::string text = describe_weights(spec_, tensors_);
    for (const auto& file : files_.files())
      text += fmt::format("{}:{} {} {}\n", file->device(), file->inode(), file->size(), file->modified_nanoseconds());
    identity_ = fmt::format("{}#{}", fs::weakly_canonical(folder).string(),
                            hex_of(checksum_of(std::as_bytes(std::span(text)))));
  }

  std::string name_;
  SafetensorsSet files_;
  ModelSpec spec_;
  std::vector<WeightTensor> tensors_;
  std::vector<Stored> stored_;  ///< Beside `tensors_`: what the files hold.
  std::vector<std::string> report_;
  std::string identity_;
};

}  // namespace

std::string describe_weights(const ModelSpec& spec, const std::vector<WeightTensor>& tensors) {
  std::string text = spec_to_json(spec).dump();
  for (const WeightTensor& tensor : tensors)
    text += fmt::format("\n{} {} {} {}", tensor.row.name, name_of(tensor.storage.storage), tensor.storage.block_size,
                        tensor.storage.nested);
  return text + '\n';
}

std::shared_ptr<const WeightSource> open_hf_checkpoint(const fs::path& folder, const WeightOptions& options) {
  return std::make_shared<HfCheckpoint>(folder, options);
}

}  // namespace duet::loaders
