#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include "duet/error.h"
#include "loaders/loaders.h"
#include "loaders/names.h"
#include "loaders/peft_config.h"
#include "loaders/peft_resolve.h"
#include "loaders/peft_storage.h"
#include "loaders/peft_targets.h"
#include "loaders/safetensors.h"
#include "loaders/sha256.h"

namespace duet::loaders {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kConfigFile = "adapter_config.json";
constexpr std::string_view kTensorFile = "adapter_model.safetensors";
constexpr std::string_view kPickleFile = "adapter_model.bin";

/// An adapter copied out of its files at open: what happens to them later changes nothing.
class PeftAdapter final : public AdapterSource {
 public:
  PeftAdapter(std::string name, AdapterSpec spec, std::vector<std::byte> slot, std::vector<std::string> report)
      : name_(std::move(name)), spec_(std::move(spec)), slot_(std::move(slot)), report_(std::move(report)) {}

  const AdapterSpec& spec() const override { return spec_; }
  const std::string& name() const override { return name_; }
  const std::vector<std::string>& report() const override { return report_; }

  void read(std::size_t tensor_index, std::span<std::byte> destination) const override {
    const AdapterTensor& tensor = spec_.tensors.at(tensor_index);
    if (destination.size() != tensor.bytes) {
      throw Error(Code::internal, fmt::format("{}: tensor {} has {} bytes; {} were asked", quote(name_), tensor_index,
                                              tensor.bytes, destination.size()));
    }
    std::memcpy(destination.data(), slot_.data() + tensor.offset, tensor.bytes);
  }

 private:
  std::string name_;
  AdapterSpec spec_;
  std::vector<std::byte> slot_;  // As one slot is laid out.
  std::vector<std::string> report_;
};

/// Resolved modules to a spec and the tensors behind its rows.
class Builder {
 public:
  Builder(const PeftConfig& config, const ModelSpec& base, std::vector<std::string>& report)
      : config_(config), base_(base), report_(report) {}

  void add(const ResolvedModule& module) {
    if (module.target.lora) add_lora(module);
    if (const Tensor* weight = find(module, AdapterLeaf::saved_weight)) add_replacement(module.target, *weight, true);
    if (const Tensor* weight = find(module, AdapterLeaf::base_layer_weight))
      add_replacement(module.target, *weight, false);
    if (const Tensor* bias = find(module, AdapterLeaf::saved_bias)) {
      add_vector(AdapterTensorKind::replacement, module.target.base.bias, module.target.base.layer, *bias,
                 module.target.base.rows);
    }
  }

  /// Loading a table of a tied base that no wrapper of its own holds sets the one table that both share.
  void share_tied_table() {
    if (!base_.tied_head) return;
    const auto index_of = [&](Part part) -> std::optional<std::size_t> {
      for (std::size_t i = 0; i < spec_.tensors.size(); ++i) {
        if (spec_.tensors[i].kind == AdapterTensorKind::replacement && spec_.tensors[i].part == part) return i;
      }
      return std::nullopt;
    };
    const auto embedding = index_of(Part::embedding);
    const auto head = index_of(Part::head);
    if (embedding.has_value() == head.has_value()) return;
    const std::size_t one = embedding ? *embedding : *head;
    if (wrapped_[one]) return;
    AdapterTensor other = spec_.tensors[one];
    other.part = embedding ? Part::head : Part::embedding;
    const Tensor* source = sources_[one];
    push(other, *source, false);
  }

  const AdapterSpec& finish() {
    lay_out(spec_);
    return spec_;
  }

  std::vector<std::byte> read_slot() const {
    std::vector<std::byte> slot(spec_.bytes);
    for (std::size_t i = 0; i < spec_.tensors.size(); ++i) {
      const AdapterTensor& tensor = spec_.tensors[i];
      read_as(*sources_[i], tensor.storage, std::span(slot).subspan(tensor.offset, tensor.bytes));
    }
    return slot;
  }

 private:
  static const Tensor* find(const ResolvedModule& module, AdapterLeaf leaf) {
    const auto found = module.tensors.find(leaf);
    return found == module.tensors.end() ? nullptr : found->second;
  }

  static void expect_shape(const Tensor& tensor, const std::vector<std::int64_t>& shape) {
    if (tensor.shape == shape) return;
    throw Error(
        Code::bad_file,
        fmt::format("{} has shape {}; the base needs {}", where(tensor), shape_text(tensor.shape), shape_text(shape)),
        "Was the adapter trained on this base?");
  }

  int push(AdapterTensor row, const Tensor& source, bool wrapped) {
    spec_.tensors.push_back(row);
    sources_.push_back(&source);
    wrapped_.push_back(wrapped);
    return static_cast<int>(spec_.tensors.size()) - 1;
  }

  int add_matrix(AdapterTensorKind kind, Part part, int layer, const Tensor& tensor, std::int64_t rows,
                 std::int64_t columns, bool wrapped = false) {
    expect_shape(tensor, {rows, columns});
    const Storage storage = choose_storage(tensor);
    if (storage == Storage::f32) {
      report_.push_back(fmt::format("{} stays float32: float16 cannot hold its values", where(tensor)));
    }
    return push({.kind = kind, .part = part, .layer = layer, .rows = rows, .columns = columns, .storage = storage},
                tensor, wrapped);
  }

  int add_vector(AdapterTensorKind kind, Part part, int layer, const Tensor& tensor, std::int64_t size) {
    expect_shape(tensor, {size});
    choose_storage(tensor);  // For its refusals: vectors are float32 whatever they were.
    return push({.kind = kind, .part = part, .layer = layer, .rows = 1, .columns = size, .storage = Storage::f32},
                tensor, false);
  }

  void add_lora(const ResolvedModule& module) {
    const BaseModule& base = module.target.base;
    const bool embedding = base.kind == ModuleKind::embedding;
    const std::int64_t in = embedding ? base.rows : base.columns;
    const std::int64_t out = embedding ? base.columns : base.rows;
    const Tensor& a = *find(module, embedding ? AdapterLeaf::embedding_a : AdapterLeaf::lora_a);
    const Tensor& b = *find(module, embedding ? AdapterLeaf::embedding_b : AdapterLeaf::lora_b);
    const int rank = module.target.rank;
    if (!a.shape.empty() && a.shape.front() != rank) {
      throw Error(Code::bad_file,
                  fmt::format("{} has rank {} (shape {}); {} gives it rank {}", where(a), a.shape.front(),
                              shape_text(a.shape), quote(config_.source), rank),
                  "Correct r or rank_pattern");
    }
    AdapterModule row{
        .part = base.weight, .layer = base.layer, .rank = rank, .scale = scale_of(module.target), .dora = config_.dora};
    row.lora_a = add_matrix(AdapterTensorKind::lora_a, base.weight, base.layer, a, rank, in);
    row.lora_b = add_matrix(AdapterTensorKind::lora_b, base.weight, base.layer, b, out, rank);
    if (const Tensor* bias = find(module, AdapterLeaf::lora_bias)) {
      row.lora_bias = add_vector(AdapterTensorKind::lora_bias, base.weight, base.layer, *bias, out);
    }
    if (const Tensor* magnitude = find(module, AdapterLeaf::magnitude)) {
      row.magnitude = add_vector(AdapterTensorKind::magnitude, base.weight, base.layer, *magnitude, out);
    }
    spec_.modules.push_back(row);
    spec_.largest_rank = std::max(spec_.largest_rank, rank);
  }

  float scale_of(const TargetedModule& target) const {
    if (std::abs(target.scale) > static_cast<double>(std::numeric_limits<float>::max())) {
      throw Error(Code::bad_file,
                  fmt::format("{}: alpha {} at rank {} gives {} a scale beyond float32", quote(config_.source),
                              target.alpha, target.rank, quote(target.base.name)));
    }
    return static_cast<float>(target.scale);
  }

  void add_replacement(const TargetedModule& target, const Tensor& tensor, bool wrapped) {
    const BaseModule& base = target.base;
    if (base.kind == ModuleKind::norm) {
      add_vector(AdapterTensorKind::replacement, base.weight, base.layer, tensor, base.columns);
      return;
    }
    add_matrix(AdapterTensorKind::replacement, base.weight, base.layer, tensor, base.rows, base.columns,
               wrapped && target.saved);
    if (!target.saved) {
      report_.push_back(fmt::format("{} is a whole table ({} bytes), which replaces the base's for this adapter",
                                    where(tensor), tensor.bytes));
    }
  }

  const PeftConfig& config_;
  const ModelSpec& base_;
  std::vector<std::string>& report_;
  AdapterSpec spec_;
  std::vector<const Tensor*> sources_;  // Of spec_.tensors.
  std::vector<bool> wrapped_;           // A replacement that modules_to_save holds apart from the base.
};

/// Everything that decides what the adapter does: equal hashes, equal adapters.
std::string hash_of(const AdapterSpec& spec, const std::vector<std::byte>& slot) {
  Sha256 hash;
  for (const AdapterModule& module : spec.modules) {
    hash.add_value(module.part);
    hash.add_value(module.layer);
    hash.add_value(module.rank);
    hash.add_value(module.scale);
    hash.add_value(module.dora);
  }
  for (const AdapterTensor& tensor : spec.tensors) {
    hash.add_value(tensor.kind);
    hash.add_value(tensor.part);
    hash.add_value(tensor.layer);
    hash.add_value(tensor.rows);
    hash.add_value(tensor.columns);
    hash.add_value(tensor.storage);
  }
  hash.add(slot);
  return hash.hex();
}

[[noreturn]] void refuse_without_tensors(const fs::path& folder) {
  std::error_code ignored;
  if (fs::exists(folder / kPickleFile, ignored)) {
    throw Error(Code::unsupported,
                fmt::format("{} holds only {}, a pickle, which could run code when read; it was not opened",
                            quote(folder.string()), kPickleFile),
                "Convert it: python -c \"import torch, safetensors.torch as s; "
                "s.save_file(torch.load('adapter_model.bin', weights_only=True), 'adapter_model.safetensors')\"");
  }
  throw Error(Code::not_found,
              fmt::format("{} has neither {} nor {}", quote(folder.string()), kTensorFile, kPickleFile),
              "Is this the folder of a PEFT adapter, and the download complete?");
}

void check_folder(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    throw Error(Code::not_found, fmt::format("There is no adapter folder {}", quote(folder.string())),
                "Check the path");
  }
  if (!fs::exists(folder / kConfigFile, ignored)) {
    throw Error(Code::not_found, fmt::format("{} has no {}", quote(folder.string()), kConfigFile),
                "Is this the folder of a PEFT adapter?");
  }
  if (!fs::exists(folder / kTensorFile, ignored)) refuse_without_tensors(folder);
}

}  // namespace

std::unique_ptr<AdapterSource> open_adapter(const fs::path& path, const ModelSpec& base, std::string_view base_name) {
  check_folder(path);
  std::vector<std::string> report;
  const fs::path config_path = path / kConfigFile;
  const PeftConfig config =
      parse_peft_config(read_json_file(config_path), config_path.string(), base.tied_head, report);
  const SafetensorsFile file(path / kTensorFile);
  const BaseNames names = base_names_in(file, base);
  if (names == BaseNames::headless)
    report.push_back(fmt::format("{}: names are those of the model without its head", quote(file.file()->name())));
  const std::vector<ResolvedModule> modules =
      resolve_tensors(config, resolve_targets(config, base, report, names), file, base_name, report);

  Builder builder(config, base, report);
  for (const ResolvedModule& module : modules) builder.add(module);
  builder.share_tied_table();
  AdapterSpec spec = builder.finish();
  if (spec.tensors.empty()) {
    throw Error(Code::bad_file, fmt::format("{} changes nothing: its config targets nothing and its file is empty",
                                            quote(path.string())));
  }
  std::vector<std::byte> slot = builder.read_slot();
  spec.content_hash = hash_of(spec, slot);
  report.push_back(fmt::format("{0}: {1} of {1} modules adapted in {2}, {3} of {3} tensors used", quote(path.string()),
                               modules.size(), quote(base_name), file.tensors().size()));
  return std::make_unique<PeftAdapter>(path.string(), std::move(spec), std::move(slot), std::move(report));
}

}  // namespace duet::loaders
