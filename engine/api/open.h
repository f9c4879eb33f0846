#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "duet/engine.h"
#include "engine/backend.h"
#include "engine/chat_template.h"
#include "engine/kev_rows.h"
#include "engine/plan.h"
#include "engine/pointer_head.h"
#include "engine/runtime.h"
#include "engine/tokenizer.h"
#include "loaders/laya_config.h"

/// From options to a running engine: read headers, plan, refuse what does not fit, only then load.
namespace duet::api {

/// What questions to a Laya are prepared with.
struct LayaParts {
  LayaTokens tokens;
  loaders::LayaSettings settings;
};

/// What questions to a Kev are prepared with; its heads come and go with adapters.
struct KevParts {
  KevTokens tokens;
  KevBudget budget;
};
using KevHeads = std::map<std::string, std::shared_ptr<const PointerHead>>;  ///< By adapter; "none": full weights.

/// What requests to one model are prepared with.
struct ModelParts {
  std::string name;
  ModelSpec spec;
  std::shared_ptr<const Tokenizer> tokenizer;  ///< Null: the checkpoint has none; only `prompt_ids` can be asked.
  std::int32_t usable_vocabulary = 0;          ///< Ids at and above it are never generated.
  std::optional<ChatTemplate> chat_template;
  std::string chat_template_problem;  ///< Why there is none.
  std::string system;                 ///< For messages that hold no system message of their own.
  std::optional<LayaParts> laya;      ///< Answers typed questions, and nothing else.
  std::optional<KevParts> kev;        ///< Its tokenizer has Kev's markers: answers typed questions where a head is.
};

struct OpenedEngine {
  Plan plan;
  std::vector<ModelParts> models;
  std::vector<std::vector<std::string>> adapters;  ///< [models] names loaded at open.
  std::vector<KevHeads> heads;                     ///< [models]
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Runtime> runtime;  ///< After the backend: it goes first.
  std::string report;
  std::string device;  ///< The backend's description, and why the automatic choice took no card.
};

/// The head beside an adapter's or a model's files; null without one. Throws Error when it does not fit the model.
std::shared_ptr<const PointerHead> read_kev_head(const ModelParts& model, const std::string& base_path,
                                                 const std::string& folder, std::vector<std::string>& notes);

/// Throws Error.
OpenedEngine open_engine(const Options& options);

/// The plan for `options`. Reads file headers where weights lie, configs alone where they do not. Throws Error.
Plan plan_engine(const Options& options);

/// Throws Error(invalid_argument) naming the option that makes no sense.
void check_options(const Options& options);

}  // namespace duet::api
