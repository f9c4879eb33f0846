#include "engine/api/open.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <set>
#include <utility>

#include "cuda/cuda_backend.h"
#include "loaders/chat_template_detect.h"
#include "loaders/json_file.h"
#include "loaders/kev_checkpoint.h"
#include "loaders/loaders.h"
#include "loaders/storage_choice.h"
#include "loaders/tokenizer_json.h"

namespace duet::api {
namespace {

namespace fs = std::filesystem;

// ---- devices ----

struct DeviceChoice {
  BackendFacts facts;
  bool cuda = false;
  std::string note;  // Of the automatic choice, for the report.
};

BackendFacts host_facts_for(KvType type) {
  if (type != KvType::automatic && type != KvType::f32)
    throw Error(Code::unsupported, "The host holds keys and values in f32 and was asked for another type",
                "Leave the KV type at auto, or choose the device 'cuda'");
  return host_facts();
}

KvStorage kv_storage_on_card(KvType type) {
  switch (type) {
    case KvType::automatic:
    case KvType::f16:
      return KvStorage::f16;
    case KvType::bf16:
      return KvStorage::bf16;
    case KvType::int8:
      return KvStorage::int8;
    case KvType::f32:
      break;
  }
  throw Error(Code::unsupported, "A card holds keys and values in f16, bf16 or int8 and was asked for f32",
              "Leave the KV type at auto, or choose the device 'host'");
}

DeviceChoice choose_device(const Options& options) {
  const Device device = options.device;
  if (device == Device::host) return {.facts = host_facts_for(options.kv_type), .cuda = false, .note = {}};
  const std::optional<std::string> problem = cuda::why_unavailable();
  if (!problem) return {.facts = cuda::cuda_facts(kv_storage_on_card(options.kv_type)), .cuda = true, .note = {}};
  if (device == Device::cuda)
    throw Error(Code::device, "Device 'cuda' was asked for: " + *problem, "Choose the device 'host' or 'auto'");
  return {.facts = host_facts_for(options.kv_type), .cuda = false, .note = "no CUDA device: " + *problem};
}

// ---- headers of files ----

struct AdapterHeader {
  const AdapterOptions* options = nullptr;
  std::unique_ptr<AdapterSource> source;  // Null when planning without its weights.
  std::size_t slot_bytes = 0;
  int rank = 0;
};

struct ModelHeader {
  const ModelOptions* options = nullptr;
  WeightOptions weights;                       // The options', with nothing left open.
  std::shared_ptr<const WeightSource> source;  // Null when planning without weights.
  std::string identity;
  ModelSpec spec;
  std::vector<WeightTensor> tensors;
  std::vector<std::string> report;
  std::vector<AdapterHeader> adapters;
};

bool has_extension(const fs::path& path, std::string_view extension) { return path.extension() == extension; }

// A packed file always holds its weights; a folder does when any safetensors file lies in it.
bool has_weights(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return true;
  fs::directory_iterator entries(path, error);
  return !error && std::any_of(begin(entries), end(entries), [](const fs::directory_entry& entry) {
    return has_extension(entry.path(), ".safetensors");
  });
}

std::string identity_without_weights(const std::string& path, const WeightOptions& weights) {
  std::error_code error;
  const fs::path resolved = fs::weakly_canonical(path, error);
  return fmt::format("{}|{}|{}|{}|{}|{}", error ? path : resolved.string(), static_cast<int>(weights.linear),
                     static_cast<int>(weights.head), static_cast<int>(weights.embedding), weights.block_size,
                     weights.double_quant);
}

AdapterHeader read_adapter(const AdapterOptions& options, const ModelHeader& model) {
  AdapterHeader header{.options = &options, .source = {}, .slot_bytes = 0, .rank = 0};
  header.source = loaders::open_adapter(options.path, model.spec, model.options->name);
  header.slot_bytes = header.source->spec().bytes;
  header.rank = header.source->spec().largest_rank;
  return header;
}

// adapter_config.json alone.
AdapterHeader expected_adapter(const AdapterOptions& options, const ModelSpec& spec) {
  const AdapterSpec expected = loaders::read_adapter_config_only(options.path, spec);
  return {.options = &options, .source = {}, .slot_bytes = expected.bytes, .rank = expected.largest_rank};
}

void read_base(ModelHeader& header, bool only_planning) {
  const ModelOptions& options = *header.options;
  if (!only_planning || has_weights(options.path)) {
    header.source = loaders::open_checkpoint(options.path, header.weights);
    header.identity = header.source->identity();
    header.spec = header.source->spec();
    header.tensors = header.source->tensors();
    header.report = header.source->report();
  } else {
    loaders::ConfigOnly config = loaders::read_config_only(options.path, header.weights);
    header.identity = identity_without_weights(options.path, header.weights);
    header.spec = std::move(config.spec);
    header.tensors = std::move(config.tensors);
    header.report = std::move(config.report);
  }
}

ModelHeader read_model(const ModelOptions& options, bool only_planning) {
  ModelHeader header;
  header.options = &options;
  header.weights = options.weights;
  if (header.weights.linear == WeightType::automatic) header.weights.linear = WeightType::as_stored;
  read_base(header, only_planning);
  for (const AdapterOptions& adapter : options.adapters) {
    const bool only_config = only_planning && !has_weights(adapter.path);
    header.adapters.push_back(only_config ? expected_adapter(adapter, header.spec) : read_adapter(adapter, header));
  }
  return header;
}

bool is_quantised(WeightType type) {
  return type == WeightType::int8 || type == WeightType::nf4 || type == WeightType::fp4;
}

// 8 bits move a Kev's answers little and halve it; nobody gets them who chose otherwise, whose file is quantised, or
// whose base would then lie in memory twice.
void choose_weights_of_kevs(std::vector<ModelHeader>& headers, bool only_planning) {
  for (ModelHeader& header : headers) {
    if (header.options->weights.linear != WeightType::automatic || !loaders::is_kev(*header.options) ||
        is_quantised(loaders::main_weight_type(header.tensors)))
      continue;
    const auto shared = std::find_if(headers.begin(), headers.end(), [&](const ModelHeader& other) {
      return other.identity == header.identity && !loaders::is_kev(*other.options);
    });
    if (shared != headers.end()) {
      header.report.push_back(
          fmt::format("as stored, not in a Kev's int8, since '{}' has the same base", shared->options->name));
      continue;
    }
    header.weights.linear = WeightType::int8;
    read_base(header, only_planning);
    header.report.emplace_back("matrices in int8, a Kev's default");
  }
}

std::vector<ModelHeader> read_models(const Options& options, bool only_planning) {
  std::vector<ModelHeader> headers;
  for (const ModelOptions& model : options.models) headers.push_back(read_model(model, only_planning));
  choose_weights_of_kevs(headers, only_planning);
  return headers;
}

// ---- plan ----

PlanModel plan_model(const ModelHeader& header) {
  const ModelOptions& options = *header.options;
  PlanModel model;
  model.name = options.name;
  model.base_identity = header.identity;
  model.base_path = options.path;
  model.spec = header.spec;
  model.tensors = header.tensors;
  model.adapter_slots = options.adapter_slots > 0 ? options.adapter_slots : static_cast<int>(options.adapters.size());
  model.largest_adapter_rank = options.adapter_rank;
  model.embedding_on_host = options.embedding_on_host;
  if (options.adapter_rank > 0) model.adapter_slot_bytes = slot_bytes_for_rank(header.spec, options.adapter_rank);
  for (const AdapterHeader& adapter : header.adapters) {
    model.adapter_slot_bytes = std::max(model.adapter_slot_bytes, adapter.slot_bytes);
    model.largest_adapter_rank = std::max(model.largest_adapter_rank, adapter.rank);
  }
  return model;
}

Plan plan_for(const Options& options, const std::vector<ModelHeader>& headers, const BackendFacts& facts) {
  PlanRequest request;
  for (const ModelHeader& header : headers) {
    request.models.push_back(plan_model(header));
    request.models.back().embedding_on_host &= facts.own_memory;
  }
  request.backend = facts;
  request.budget = options.budget;
  request.kv_tokens = options.kv_tokens;
  request.max_sequences = options.max_sequences;
  request.prefill_chunk_tokens = options.prefill_chunk_tokens;
  return make_plan(request);
}

// ---- tokenizers and templates ----

LayaParts read_laya_parts(const std::string& path, const Tokenizer& tokenizer) {
  const auto text = [&](std::string_view name) {
    auto content = loaders::read_checkpoint_text(path, name);
    if (!content) throw Error(Code::not_found, fmt::format("'{}' has no {}", path, name), "Copy the whole checkpoint");
    return std::move(*content);
  };
  constexpr std::string_view kConfig = "tokenizer_config.json";
  return {
      loaders::laya_tokens(tokenizer, text(kConfig), fmt::format("{}/{}", path, kConfig)),
      loaders::parse_laya_settings(text(loaders::kLayaAgentFile), fmt::format("{}/{}", path, loaders::kLayaAgentFile))};
}

/// Empty for a tokenizer without Kev's markers.
std::optional<KevParts> read_kev_parts(const Tokenizer& tokenizer, const ModelSpec& spec) {
  for (const std::string_view marker : kKevMarkers)
    if (!tokenizer.id_of(marker)) return std::nullopt;
  return KevParts{kev_tokens(tokenizer, "the tokenizer"), kev_budget(spec.max_position_tokens)};
}

KevHeads read_kev_heads(const ModelHeader& header, const ModelParts& parts, std::vector<std::string>& notes) {
  KevHeads heads;
  const ModelOptions& options = *header.options;
  const auto add = [&](const std::string& name, const std::string& folder) {
    if (auto head = read_kev_head(parts, options.path, folder, notes)) heads.emplace(name, std::move(head));
  };
  add("none", options.path);
  for (const AdapterOptions& adapter : options.adapters) add(adapter.name, adapter.path);
  return heads;
}

ModelParts read_parts(const ModelHeader& header, std::vector<std::string>& notes) {
  const ModelOptions& options = *header.options;
  ModelParts parts;
  parts.name = options.name;
  parts.spec = header.spec;
  parts.system = options.system;
  parts.usable_vocabulary = header.spec.vocabulary;
  if (!loaders::read_checkpoint_text(options.path, "tokenizer.json")) {
    parts.chat_template_problem = "its checkpoint has no tokenizer.json. Ask with prompt_ids";
    notes.push_back("no tokenizer.json: only prompt_ids can be asked, and answers have ids but no text");
    return parts;
  }
  parts.tokenizer = loaders::load_tokenizer(options.path);
  const std::int32_t tokens = parts.tokenizer->vocabulary_size();
  if (tokens > header.spec.vocabulary)
    notes.push_back(fmt::format("the tokenizer has {} ids, the model {}: text that needs the others is refused", tokens,
                                header.spec.vocabulary));
  parts.usable_vocabulary = std::min(tokens, header.spec.vocabulary);
  if (header.spec.kind == ModelKind::encoder) {
    parts.laya = read_laya_parts(options.path, *parts.tokenizer);
    parts.chat_template_problem = "it is an encoder, which answers typed questions. Ask it with decide";
    return parts;
  }
  parts.kev = read_kev_parts(*parts.tokenizer, header.spec);
  try {
    parts.chat_template = loaders::load_chat_template(options.path, options.chat_template);
  } catch (const Error& error) {
    if (!options.chat_template.empty()) throw;
    parts.chat_template_problem = error.what();
    while (parts.chat_template_problem.ends_with('.')) parts.chat_template_problem.pop_back();
    notes.push_back(fmt::format("no chat template, raw prompts only: {}", error.what()));
  }
  return parts;
}

// ---- loading ----

// Adds the bases up and lets one call through at a time.
class ProgressOfAll {
 public:
  ProgressOfAll(LoadSink* sink, const Plan& plan) : sink_(sink) {
    for (const PlannedBase& base : plan.bases) total_ += bytes_of(base);
  }

  LoadProgress of(const PlannedBase& base, std::string model) {
    const std::uint64_t before = std::exchange(begun_, begun_ + bytes_of(base));
    if (sink_ == nullptr) return [](std::uint64_t, std::uint64_t) {};
    return [this, before, limit = bytes_of(base), name = std::move(model)](std::uint64_t done, std::uint64_t) {
      const std::lock_guard lock(mutex_);
      sink_->on_load(name, before + std::min(done, limit), total_);
    };
  }

 private:
  static std::uint64_t bytes_of(const PlannedBase& base) {
    std::uint64_t bytes = 0;
    for (const Region& region : base.regions) bytes += region.bytes;
    return bytes;
  }

  LoadSink* sink_;
  std::mutex mutex_;
  std::uint64_t begun_ = 0;
  std::uint64_t total_ = 0;
};

std::size_t first_model_of(const Plan& plan, std::size_t base) {
  const auto found = std::find_if(plan.models.begin(), plan.models.end(), [&](const PlannedModel& model) {
    return static_cast<std::size_t>(model.base) == base;
  });
  return static_cast<std::size_t>(found - plan.models.begin());
}

void load_bases(Backend& backend, const Plan& plan, const std::vector<ModelHeader>& headers, LoadSink* sink) {
  ProgressOfAll progress(sink, plan);
  for (std::size_t base = 0; base < plan.bases.size(); ++base) {
    const std::size_t model = first_model_of(plan, base);
    backend.load_weights(static_cast<int>(base), *headers[model].source,
                         progress.of(plan.bases[base], plan.models[model].name));
  }
}

RuntimeModel runtime_model(const ModelParts& parts, const ModelOptions& options) {
  RuntimeModel model;
  model.tokenizer = parts.tokenizer;
  model.end_ids = parts.spec.end_ids;
  model.usable_vocabulary = parts.usable_vocabulary;
  if (!options.adapters.empty()) model.default_adapter = options.adapters.front().name;
  return model;
}

// ---- report ----

std::string report_of(const OpenedEngine& engine, const std::vector<ModelHeader>& headers, const DeviceChoice& device,
                      const std::vector<std::vector<std::string>>& notes) {
  std::string text = fmt::format("device: {}\n", engine.backend->description());
  if (!device.note.empty()) text += fmt::format("  {}\n", device.note);
  for (std::size_t i = 0; i < headers.size(); ++i) {
    const ModelHeader& header = headers[i];
    text +=
        fmt::format("model '{}': {} from '{}'\n", header.options->name, header.spec.architecture, header.options->path);
    const std::size_t owner = first_model_of(engine.plan, static_cast<std::size_t>(engine.plan.models[i].base));
    if (owner != i) text += fmt::format("  shares its base weights with '{}'\n", headers[owner].options->name);
    for (const std::string& line : header.report) text += fmt::format("  {}\n", line);
    for (const std::string& line : notes[i]) text += fmt::format("  {}\n", line);
    if (engine.models[i].chat_template)
      text += fmt::format("  chat template: {}\n", engine.models[i].chat_template->name());
    for (const AdapterHeader& adapter : header.adapters) {
      text += fmt::format("  adapter '{}' from '{}': {} modules, rank {}, {}\n", adapter.options->name,
                          adapter.options->path, adapter.source->spec().modules.size(), adapter.rank,
                          human_bytes(adapter.slot_bytes));
      for (const std::string& line : adapter.source->report()) text += fmt::format("    {}\n", line);
    }
  }
  return text;
}

// ---- options ----

[[noreturn]] void refuse(std::string what, std::string_view fix) {
  throw Error(Code::invalid_argument, std::move(what), fix);
}

void check_adapters(const ModelOptions& model) {
  std::set<std::string> names;
  for (const AdapterOptions& adapter : model.adapters) {
    if (adapter.name.empty() || adapter.name == "none")
      refuse(fmt::format("An adapter of model '{}' is called '{}'", model.name, adapter.name),
             "Choose another name; 'none' means the base alone");
    if (!names.insert(adapter.name).second)
      refuse(fmt::format("Model '{}' has two adapters called '{}'", model.name, adapter.name),
             "Give each its own name");
    if (!(adapter.scale > -1e6 && adapter.scale < 1e6))
      refuse(fmt::format("The scale of adapter '{}' is {}", adapter.name, adapter.scale), "1 applies it as trained");
  }
  const auto count = static_cast<int>(model.adapters.size());
  if (model.adapter_slots < 0 || (model.adapter_slots > 0 && model.adapter_slots < count))
    refuse(fmt::format("Model '{}' has {} adapter slots for {} adapters", model.name, model.adapter_slots, count),
           "Leave adapter_slots 0 or give one to each adapter at least");
  if (model.adapter_rank < 0)
    refuse(fmt::format("adapter_rank of model '{}' is {}", model.name, model.adapter_rank), "It must be 0 or positive");
  if (model.adapter_slots > 0 && count == 0 && model.adapter_rank == 0)
    refuse(fmt::format("Model '{}' keeps {} adapter slots of unknown size", model.name, model.adapter_slots),
           "Give adapter_rank too");
}

void check_positive(std::string_view name, std::int64_t value, std::int64_t smallest) {
  if (value < smallest) refuse(fmt::format("{} is {}", name, value), fmt::format("It must be at least {}", smallest));
}

}  // namespace

void check_options(const Options& options) {
  if (options.models.empty()) refuse("No model was given", "Name at least one model and its path");
  std::set<std::string> names;
  for (const ModelOptions& model : options.models) {
    if (model.name.empty()) refuse(fmt::format("The model at '{}' has no name", model.path), "Give it one");
    if (!names.insert(model.name).second)
      refuse(fmt::format("Two models are called '{}'", model.name), "Give each its own name");
    if (model.path.empty()) refuse(fmt::format("Model '{}' has no path", model.name), "Name its folder or packed file");
    check_adapters(model);
  }
  check_positive("budget", static_cast<std::int64_t>(std::min<std::uint64_t>(options.budget, 1)), 1);
  check_positive("kv_tokens", options.kv_tokens, 0);
  check_positive("max_sequences", options.max_sequences, 1);
  check_positive("threads", options.threads, 0);
  check_positive("max_passed_over", options.max_passed_over, 0);
  check_positive("prefill_chunk_tokens", options.prefill_chunk_tokens, 1);
}

std::shared_ptr<const PointerHead> read_kev_head(const ModelParts& model, const std::string& base_path,
                                                 const std::string& folder, std::vector<std::string>& notes) {
  if (!loaders::is_kev_folder(folder)) return nullptr;
  loaders::KevCheckpoint checkpoint = loaders::read_kev_checkpoint(folder, notes);
  loaders::check_kev_base(checkpoint, model.spec, base_path);
  if (!model.kev)
    throw Error(Code::bad_file,
                fmt::format("'{}' is a Kev, and the tokenizer of '{}' lacks its markers ({}, ...)", folder, base_path,
                            kKevMarkers[0]),
                "Name the base that this Kev was trained on");
  (void)loaders::load_kev_tokenizer(base_path, folder, notes);  // Says so when the folder has another one.
  return std::make_shared<const PointerHead>(std::move(checkpoint.head));
}

Plan plan_engine(const Options& options) {
  check_options(options);
  return plan_for(options, read_models(options, true), choose_device(options).facts);
}

OpenedEngine open_engine(const Options& options) {
  check_options(options);
  const DeviceChoice device = choose_device(options);
  const std::vector<ModelHeader> headers = read_models(options, false);
  OpenedEngine engine;
  engine.plan = plan_for(options, headers, device.facts);

  std::vector<std::vector<std::string>> notes(headers.size());
  std::vector<RuntimeModel> runtime_models;
  for (std::size_t i = 0; i < headers.size(); ++i) {
    engine.models.push_back(read_parts(headers[i], notes[i]));
    engine.heads.push_back(read_kev_heads(headers[i], engine.models[i], notes[i]));
    runtime_models.push_back(runtime_model(engine.models[i], options.models[i]));
  }

  engine.backend =
      device.cuda ? cuda::make_cuda_backend(engine.plan) : make_host_backend(engine.plan, {.threads = options.threads});
  load_bases(*engine.backend, engine.plan, headers, options.load_sink);
  engine.backend->start();
  engine.runtime = std::make_unique<Runtime>(
      *engine.backend, engine.plan, std::move(runtime_models),
      RuntimeOptions{.kv_policy = options.kv_policy, .max_passed_over = options.max_passed_over});
  for (std::size_t i = 0; i < headers.size(); ++i) {
    engine.adapters.emplace_back();
    for (const AdapterHeader& adapter : headers[i].adapters) {
      const AdapterOptions& own = *adapter.options;
      engine.runtime->load_adapter(static_cast<int>(i), own.name, *adapter.source, own.scale);
      engine.adapters.back().push_back(own.name);
    }
  }
  engine.device = engine.backend->description();
  if (!device.note.empty()) engine.device += "; " + device.note;
  engine.report = report_of(engine, headers, device, notes);
  return engine;
}

}  // namespace duet::api
