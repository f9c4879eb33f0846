#include <algorithm>
#include <vector>

#include "loaders/loaders.h"
#include "loaders/peft_config.h"
#include "loaders/peft_targets.h"

namespace duet::loaders {

namespace {

/// The rows that a PEFT file holds for what its config targets. Types are the file's secret: the widest is taken.
class Rows {
 public:
  Rows(const PeftConfig& config, const ModelSpec& base) : config_(config), base_(base) {}

  void add(const TargetedModule& target) {
    const BaseModule& base = target.base;
    if (target.lora) add_lora(target);
    if (target.saved && base.kind == ModuleKind::norm) {
      push(AdapterTensorKind::replacement, base.weight, base.layer, 1, base.columns, Storage::f32);
    } else if (target.saved || (target.lora && base.layer < 0)) {
      // PEFT writes the whole table beside an adapted embedding or head.
      push(AdapterTensorKind::replacement, base.weight, base.layer, base.rows, base.columns, Storage::f32);
      if (!target.saved) tables_.push_back(base.weight);
    }
    const bool trained_bias =
        config_.bias == TrainedBias::all || (config_.bias == TrainedBias::lora_only && target.lora);
    if (base.has_bias && (target.saved || trained_bias))
      push(AdapterTensorKind::replacement, base.bias, base.layer, 1, base.rows, Storage::f32);
  }

  AdapterSpec finish() {
    if (base_.tied_head && tables_.size() == 1) {  // Setting one sets the one table that both share.
      const Part other = tables_[0] == Part::embedding ? Part::head : Part::embedding;
      push(AdapterTensorKind::replacement, other, -1, base_.vocabulary, base_.hidden, Storage::f32);
    }
    lay_out(spec_);
    return std::move(spec_);
  }

 private:
  void push(AdapterTensorKind kind, Part part, int layer, std::int64_t rows, std::int64_t columns, Storage storage) {
    spec_.tensors.push_back(
        {.kind = kind, .part = part, .layer = layer, .rows = rows, .columns = columns, .storage = storage});
  }

  void add_lora(const TargetedModule& target) {
    const BaseModule& base = target.base;
    const bool embedding = base.kind == ModuleKind::embedding;
    const std::int64_t in = embedding ? base.rows : base.columns;
    const std::int64_t out = embedding ? base.columns : base.rows;
    push(AdapterTensorKind::lora_a, base.weight, base.layer, target.rank, in, Storage::f32);
    push(AdapterTensorKind::lora_b, base.weight, base.layer, out, target.rank, Storage::f32);
    if (config_.lora_bias) push(AdapterTensorKind::lora_bias, base.weight, base.layer, 1, out, Storage::f32);
    if (config_.dora) push(AdapterTensorKind::magnitude, base.weight, base.layer, 1, out, Storage::f32);
    spec_.largest_rank = std::max(spec_.largest_rank, target.rank);
  }

  const PeftConfig& config_;
  const ModelSpec& base_;
  AdapterSpec spec_;
  std::vector<Part> tables_;  // Replaced as they are, not by modules_to_save.
};

}  // namespace

AdapterSpec read_adapter_config_only(const std::filesystem::path& path, const ModelSpec& base) {
  const std::filesystem::path file = path / "adapter_config.json";
  std::vector<std::string> report;
  const PeftConfig config = parse_peft_config(read_json_file(file), file.string(), base.tied_head, report);
  Rows rows(config, base);
  for (const TargetedModule& target : resolve_targets(config, base, report)) rows.add(target);
  return rows.finish();
}

}  // namespace duet::loaders
