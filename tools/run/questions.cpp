#include "tools/run/questions.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "loaders/json_file.h"
#include "loaders/names.h"
#include "tools/run/ask.h"
#include "tools/run/parse.h"

namespace duet::run {
namespace {

using loaders::Json;
using loaders::JsonObject;

constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();

const std::vector<std::string>& known_keys() {
  static const std::vector<std::string> kKeys = {
      "id",       "prompt",   "messages",           "prompt_ids",        "system",       "raw",
      "model",    "adapter",  "max_tokens",         "ignore_end_tokens", "temperature",  "top_k",
      "top_p",    "min_p",    "repetition_penalty", "logit_bias",        "seed",         "stop",
      "logprobs", "priority", "deadline",           "max_length",        "length_policy"};
  return kKeys;
}

[[noreturn]] void refuse(const JsonObject& object, std::string_view what, std::string_view fix) {
  throw Error(Code::bad_file, fmt::format("'{}': {}", object.source(), what), fix);
}

void check_keys(const JsonObject& object) {
  for (const std::string& key : object.keys()) {
    if (std::find(known_keys().begin(), known_keys().end(), key) != known_keys().end()) continue;
    const std::string nearest = loaders::nearest_name(key, known_keys());
    refuse(object, fmt::format("{} is no key of a question", loaders::quote(key)),
           nearest.empty() ? "Known are " + loaders::listed(known_keys(), known_keys().size())
                           : fmt::format("The nearest is '{}'", nearest));
  }
}

void read_messages(const JsonObject& object, Request& request) {
  const Json* messages = object.find("messages");
  if (!messages->is_array() || messages->empty()) object.refuse("messages", "a list of messages");
  for (const Json& entry : *messages) {
    const JsonObject message(entry, object.source(), "messages");
    request.messages.push_back({message.text("role"), message.text("content")});
  }
}

void read_ids(const JsonObject& object, Request& request) {
  const Json* ids = object.find("prompt_ids");
  if (!ids->is_array() || ids->empty()) object.refuse("prompt_ids", "a list of token ids");
  for (const Json& id : *ids) {
    if (!id.is_number_integer() || id.get<double>() < 0 || id.get<double>() > static_cast<double>(kMaxInt))
      object.refuse("prompt_ids", "a list of token ids");
    request.prompt_ids.push_back(id.get<std::int32_t>());
  }
}

void read_text(const JsonObject& object, const RunOptions& options, Request& request) {
  const int given =
      (object.has("prompt") ? 1 : 0) + (object.has("messages") ? 1 : 0) + (object.has("prompt_ids") ? 1 : 0);
  if (given != 1)
    refuse(object, given == 0 ? "the line asks nothing" : "the line asks more than once",
           "Give exactly one of prompt, messages and prompt_ids");
  if (object.has("messages")) return read_messages(object, request);
  if (object.has("prompt_ids")) return read_ids(object, request);
  RunOptions own;
  own.request = std::move(request);
  own.raw = object.boolean_or("raw", options.raw);
  own.system = object.text_or("system", options.system);
  request = request_for(own, object.text("prompt"));
}

LengthPolicy read_length_policy(const JsonObject& object) {
  try {
    return parse_length_policy("length_policy", object.text("length_policy"));
  } catch (const Error&) {
    object.refuse("length_policy", "reject, truncate or segment");
  }
}

/// {"1234": -5}, as in OpenAI's API.
std::vector<LogitBias> read_biases(const JsonObject& biases) {
  std::vector<LogitBias> read;
  for (const std::string& id : biases.keys()) {
    LogitBias bias;
    const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), bias.id);
    if (error != std::errc() || end != id.data() + id.size()) biases.refuse(id, "a number under a token's id");
    bias.bias = static_cast<float>(biases.number(id));
    read.push_back(bias);
  }
  return read;
}

void read_settings(const JsonObject& object, Request& request) {
  const auto integer = [&](std::string_view key, int fallback, std::int64_t smallest) {
    return static_cast<int>(object.integer_or(key, fallback, smallest, kMaxInt));
  };
  Sampling& sampling = request.sampling;
  request.adapter = object.text_or("adapter", request.adapter);
  request.max_tokens = integer("max_tokens", request.max_tokens, 1);
  request.max_length_tokens = integer("max_length", request.max_length_tokens, 1);
  if (object.has("length_policy")) request.length_policy = read_length_policy(object);
  request.ignore_end_tokens = object.boolean_or("ignore_end_tokens", request.ignore_end_tokens);
  request.logprobs = integer("logprobs", request.logprobs, 0);
  request.priority = integer("priority", request.priority, -kMaxInt);
  request.deadline = object.number_or("deadline", request.deadline);
  sampling.temperature = object.number_or("temperature", sampling.temperature);
  sampling.top_k = integer("top_k", sampling.top_k, 0);
  sampling.top_p = object.number_or("top_p", sampling.top_p);
  sampling.min_p = object.number_or("min_p", sampling.min_p);
  sampling.repetition_penalty = object.number_or("repetition_penalty", sampling.repetition_penalty);
  if (const auto biases = object.object("logit_bias")) sampling.logit_bias = read_biases(*biases);
  if (object.has("seed"))
    sampling.seed = static_cast<std::uint64_t>(object.integer("seed", 0, std::numeric_limits<std::int64_t>::max()));
  if (const Json* stop = object.find("stop"))
    request.stop = stop->is_string() ? std::vector{object.text("stop")} : object.texts("stop");
}

}  // namespace

Question parse_question(std::string_view line, const std::string& place, const RunOptions& options) {
  const Json json = loaders::parse_json(line, place);
  const JsonObject object(json, place);
  check_keys(object);
  Question question;
  question.mode = options.mode;
  question.request = options.request;
  read_text(object, options, question.request);
  read_settings(object, question.request);
  if (object.has("model")) {
    question.mode = Mode::single;
    question.request.model = object.text("model");
  }
  if (const Json* id = object.find("id")) {
    if (!id->is_string() && !id->is_number()) object.refuse("id", "a string or a number");
    question.id_json = id->dump();
  }
  return question;
}

}  // namespace duet::run
