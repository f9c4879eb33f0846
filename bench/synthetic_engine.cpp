#include "bench/synthetic_engine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <map>

#include "cuda/cuda_backend.h"
#include "duet/error.h"
#include "loaders/loaders.h"
#include "loaders/synthetic.h"

namespace duet::bench {
namespace {

namespace fs = std::filesystem;

/// A checkpoint with one scale that is NaN, in the last layer's down projection.
class Poisoned final : public WeightSource {
 public:
  explicit Poisoned(std::shared_ptr<const WeightSource> healthy)
      : healthy_(std::move(healthy)), identity_(healthy_->identity() + " poisoned") {}
  const ModelSpec& spec() const override { return healthy_->spec(); }
  const std::string& name() const override { return healthy_->name(); }
  const std::string& identity() const override { return identity_; }
  const std::vector<WeightTensor>& tensors() const override { return healthy_->tensors(); }
  const std::vector<std::string>& report() const override { return healthy_->report(); }
  void read(std::size_t index, std::span<std::byte> region) const override {
    healthy_->read(index, region);
    const WeightTensor& tensor = tensors()[index];
    if (tensor.row.part != Part::down || tensor.row.layer != spec().layers - 1) return;
    const MatrixLayout layout = layout_of(tensor.row.rows, tensor.row.columns, tensor.storage);
    std::memset(region.data() + layout.scales_offset + layout.scales_bytes / 2 / 4 * 4, 0xFF, sizeof(float));
  }

 private:
  std::shared_ptr<const WeightSource> healthy_;
  std::string identity_;
};

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "duet-bench-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr)
      throw Error(Code::bad_file, fmt::format("No folder can be made in {}", fs::temp_directory_path().string()),
                  "Set TMPDIR to a place that can be written");
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

BackendFacts facts_of(const SyntheticOptions& options) {
  return options.device == Device::host ? host_facts() : cuda::cuda_facts(options.kv_storage);
}

}  // namespace

WeightOptions small_card_weights() {
  WeightOptions weights;
  weights.linear = WeightType::nf4;
  weights.head = weights.embedding = WeightType::int8;
  return weights;
}

std::unique_ptr<AdapterSource> synthetic_adapter(const WeightSource& base, const std::string& shape, int rank,
                                                 std::uint64_t seed) {
  const TemporaryFolder folder;
  loaders::write_synthetic_adapter(folder.path() / "lora", shape, rank, seed);
  return loaders::open_adapter(folder.path() / "lora", base.spec(), base.name());  // Mapped: the file may go.
}

std::vector<PlanModel> planned_models(const std::vector<SyntheticModel>& models, const WeightOptions& weights) {
  std::vector<PlanModel> planned;
  for (const SyntheticModel& model : models) {
    const auto source = loaders::make_synthetic(model.shape, weights, model.seed);
    PlanModel one;
    one.name = fmt::format("model {}", planned.size());
    one.base_identity = fmt::format("{} seed {}", source->identity(), model.seed);
    one.base_path = fmt::format("{} (random weights, seed {})", model.shape, model.seed);
    one.spec = source->spec();
    one.tensors = source->tensors();
    if (model.lora_rank > 0) {
      one.adapter_slots = 2;
      one.adapter_slot_bytes = slot_bytes_for_rank(source->spec(), model.lora_rank);
      one.largest_adapter_rank = model.lora_rank;
    }
    planned.push_back(std::move(one));
  }
  return planned;
}

SyntheticEngine::SyntheticEngine(const std::vector<SyntheticModel>& models, const SyntheticOptions& options) {
  std::map<std::pair<std::string, std::uint64_t>, std::shared_ptr<const WeightSource>> made;
  for (const SyntheticModel& model : models) {
    auto& source = made[{model.shape, model.seed}];
    if (source == nullptr) {
      source = loaders::make_synthetic(model.shape, options.weights, model.seed);
      if (model.seed == options.poisoned_seed) source = std::make_shared<Poisoned>(source);
    }
    sources.push_back(source);
    adapters.push_back(
        model.lora_rank == 0 ? nullptr : synthetic_adapter(*source, model.shape, model.lora_rank, model.seed + 100));
  }
  PlanRequest request;
  request.models = planned_models(models, options.weights);
  request.backend = facts_of(options);
  request.budget = options.budget;
  request.kv_tokens = options.kv_tokens;
  request.max_sequences = options.max_sequences;
  request.prefill_chunk_tokens = options.prefill_chunk_tokens;
  plan = make_plan(request);

  const auto begin = std::chrono::steady_clock::now();
  backend = options.device == Device::host ? make_host_backend(plan, {}) : cuda::make_cuda_backend(plan);
  std::vector<bool> loaded(plan.bases.size(), false);
  for (std::size_t i = 0; i < models.size(); ++i) {
    const auto base = static_cast<std::size_t>(plan.models[i].base);
    if (!loaded[base]) backend->load_weights(static_cast<int>(base), *sources[i], nullptr);
    loaded[base] = true;
  }
  backend->start();
  load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::unique_ptr<Runtime> SyntheticEngine::runtime(const RuntimeOptions& options) const {
  std::vector<RuntimeModel> models(plan.models.size());
  for (std::size_t i = 0; i < models.size(); ++i)
    if (adapters[i] != nullptr) models[i].default_adapter = "lora";
  auto runtime = std::make_unique<Runtime>(*backend, plan, models, options);
  for (std::size_t i = 0; i < models.size(); ++i)
    if (adapters[i] != nullptr) runtime->load_adapter(static_cast<int>(i), "lora", *adapters[i], 1.0);
  return runtime;
}

}  // namespace duet::bench
