#include "engine/api/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/sampler.h"
#include "engine/unicode.h"
#include "loaders/names.h"

namespace duet::api {
namespace {

using loaders::quote;

[[noreturn]] void refuse(std::string what, std::string_view fix) {
  throw Error(Code::invalid_argument, std::move(what), fix);
}

[[noreturn]] void not_found(std::string_view kind, const std::string& name, const std::vector<std::string>& known) {
  const std::string nearest = loaders::nearest_name(name, known);
  std::string fix = known.empty() ? fmt::format("There is none") : fmt::format("Known are {}", loaders::listed(known));
  if (!nearest.empty()) fix = fmt::format("The nearest is '{}'", nearest);
  throw Error(Code::not_found, fmt::format("There is no {} called {}", kind, quote(name)), fix);
}

void check_numbers(const Request& request, const ModelParts& model) {
  if (request.max_tokens < 1) refuse(fmt::format("max_tokens is {}", request.max_tokens), "It must be at least 1");
  if (request.max_length_tokens < 1)
    refuse(fmt::format("max_length_tokens is {}", request.max_length_tokens), "It must be at least 1");
  if (request.logprobs < 0 || request.logprobs > kMaxLogprobs)
    refuse(fmt::format("logprobs is {}", request.logprobs), fmt::format("It must lie in [0, {}]", kMaxLogprobs));
  if (!std::isfinite(request.adapter_scale))
    refuse(fmt::format("adapter_scale is {}", request.adapter_scale), "It must be a finite number");
  if (!std::isfinite(request.deadline) || request.deadline < 0)
    refuse(fmt::format("deadline is {} seconds", request.deadline), "It must be 0 (none) or positive");
  const std::string problem = check_sampling(request.sampling, model.usable_vocabulary);
  if (!problem.empty()) refuse(problem, "Correct the sampling settings");
}

void check_stops(const Request& request, const ModelParts& model) {
  for (const std::string& stop : request.stop) {
    if (stop.empty()) refuse("A stop string is empty", "Leave it out");
    check_utf8(stop, "a stop string");
  }
  if (!request.stop.empty()) (void)tokenizer_of(model);
}

void check_adapter(const Request& request, const ModelParts& model, const std::vector<std::string>& adapters) {
  if (request.adapter.empty() || request.adapter == "none") return;
  if (std::find(adapters.begin(), adapters.end(), request.adapter) == adapters.end())
    not_found(fmt::format("adapter of model '{}'", model.name), request.adapter, adapters);
}

std::vector<std::int32_t> ids_of_messages(const Request& request, const ModelParts& model) {
  constexpr std::array<std::string_view, 3> kRoles = {"system", "user", "assistant"};
  const Tokenizer& tokenizer = tokenizer_of(model);
  if (!model.chat_template)
    throw Error(Code::unsupported,
                fmt::format("Model '{}' takes no messages: {}", model.name, model.chat_template_problem));
  std::vector<ChatMessage> messages;
  std::size_t bytes = 0;
  for (const Message& message : request.messages) {
    if (std::find(kRoles.begin(), kRoles.end(), message.role) == kRoles.end())
      refuse(fmt::format("A message has the role {}", quote(message.role)), "Roles are system, user and assistant");
    check_size(bytes += message.content.size());  // Before a template multiplies it.
    check_utf8(message.content, fmt::format("the content of a {} message", message.role));
    messages.push_back({message.role, message.content});
  }
  const auto is_system = [](const ChatMessage& message) { return message.role == "system"; };
  if (!model.system.empty() && std::none_of(messages.begin(), messages.end(), is_system))
    messages.insert(messages.begin(), {"system", model.system});
  const std::vector<ChatPiece> rendered = model.chat_template->render(messages, true);
  bytes = 0;
  for (const ChatPiece& piece : rendered) bytes += piece.text.size();
  check_size(bytes);
  return encode_chat(tokenizer, rendered);
}

std::vector<std::int32_t> ids_of_prompt(const Request& request, const ModelParts& model) {
  check_size(request.prompt.size());
  check_utf8(request.prompt, "the prompt");
  return tokenizer_of(model).encode(request.prompt, {.add_special_tokens = true, .parse_special_tokens = true});
}

std::vector<std::int32_t> start_token(const ModelParts& model) {
  if (!model.tokenizer || model.tokenizer->prefix_ids().empty())
    refuse(fmt::format("The request is empty, and model '{}' has no start token to begin from", model.name),
           "Give messages, prompt or prompt_ids");
  const auto prefix = model.tokenizer->prefix_ids();
  return {prefix.begin(), prefix.end()};
}

std::vector<std::int32_t> ids_of(const Request& request, const ModelParts& model) {
  const int given =
      (request.messages.empty() ? 0 : 1) + (request.prompt.empty() ? 0 : 1) + (request.prompt_ids.empty() ? 0 : 1);
  if (given > 1) refuse("The request holds more than one of messages, prompt and prompt_ids", "Give exactly one");
  std::vector<std::int32_t> ids;
  if (given == 0) {
    ids = start_token(model);
  } else if (!request.messages.empty()) {
    ids = ids_of_messages(request, model);
  } else {
    ids = request.prompt.empty() ? request.prompt_ids : ids_of_prompt(request, model);
  }
  if (ids.empty()) refuse("The prompt comes to no tokens at all", "Give some text");
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= model.spec.vocabulary)
      refuse(fmt::format("Token {} of the prompt is outside the vocabulary of model '{}', [0, {})", id, model.name,
                         model.spec.vocabulary),
             "The tokenizer that made it belongs to another model");
  }
  return ids;
}

}  // namespace

void check_size(std::size_t bytes) {
  if (bytes > kMaxPromptBytes)
    throw Error(Code::no_room, fmt::format("The text has {} bytes; at most {} are taken", bytes, kMaxPromptBytes),
                "Shorten it");
}

void check_utf8(std::string_view text, std::string_view what) {
  if (valid_utf8(text) != text) refuse(fmt::format("The bytes of {} are not valid UTF-8", what), "Encode it as UTF-8");
}

const Tokenizer& tokenizer_of(const ModelParts& model) {
  if (!model.tokenizer)
    throw Error(Code::unsupported, fmt::format("Model '{}' has no tokenizer", model.name),
                "Ask with prompt_ids, or put tokenizer.json beside its weights");
  return *model.tokenizer;
}

int find_model(const std::vector<ModelParts>& models, const std::string& name) {
  std::vector<std::string> known;
  for (std::size_t i = 0; i < models.size(); ++i) {
    if (models[i].name == name) return static_cast<int>(i);
    known.push_back(models[i].name);
  }
  not_found("model", name, known);
}

TokenRequest prepare(const Request& request, const ModelParts& model, int model_index,
                     const std::vector<std::string>& adapters) {
  check_numbers(request, model);
  check_stops(request, model);
  check_adapter(request, model, adapters);
  TokenRequest prepared;
  prepared.prompt_ids = ids_of(request, model);
  prepared.model = model_index;
  prepared.adapter = request.adapter;
  prepared.adapter_scale = request.adapter_scale;
  prepared.sampling = request.sampling;
  prepared.max_tokens = request.max_tokens;
  prepared.stop = request.stop;
  prepared.ignore_end_tokens = request.ignore_end_tokens;
  prepared.max_length_tokens = request.max_length_tokens;
  prepared.length_policy = request.length_policy;
  prepared.logprobs = request.logprobs;
  prepared.priority = request.priority;
  prepared.deadline = request.deadline;
  return prepared;
}

}  // namespace duet::api
