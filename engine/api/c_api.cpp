#include "duet/c_api.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "duet/engine.h"
#include "engine/api/c_border.h"
#include "engine/api/version.h"
#include "loaders/names.h"

// All of the C interface but decisions (c_decide.cpp).
using duet::api::checked;
using duet::api::fail;
using duet::api::made;
using duet::api::with;

namespace {

// Hands a ticket's text to a C callback.
class CallbackSink final : public duet::TokenSink {
 public:
  CallbackSink(duet_text_callback callback, void* user) : callback_(callback), user_(user) {}
  void on_text(std::string_view text) override { callback_(text.data(), text.size(), user_); }

 private:
  duet_text_callback callback_;
  void* user_;
};

class CallbackLoadSink final : public duet::LoadSink {
 public:
  CallbackLoadSink(duet_load_callback callback, void* user) : callback_(callback), user_(user) {}
  void on_load(std::string_view model, std::uint64_t bytes_done, std::uint64_t bytes_total) override {
    callback_(std::string(model).c_str(), bytes_done, bytes_total, user_);
  }

 private:
  duet_load_callback callback_;
  void* user_;
};

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): C names.
struct duet_options {
  duet::Options options;
  duet_load_callback load_callback = nullptr;
  void* load_user = nullptr;
};

struct duet_request {
  duet::Request request;
};

struct duet_rules {
  duet::RouteRules rules;
};

struct duet_answer {
  duet::Answer answer;
  bool escalated = false;
  double confidence = 0;
  std::string reason;
  std::unique_ptr<duet_answer> fast;  // Null unless routed.
};
// NOLINTEND(readability-identifier-naming)

namespace {

thread_local std::string last_message;

char* copied(const std::string& text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

duet::ModelOptions& model_of(duet_options& options, const char* name) {
  std::vector<std::string> known;
  for (duet::ModelOptions& model : options.options.models) {
    if (model.name == name) return model;
    known.push_back(model.name);
  }
  const std::string nearest = duet::loaders::nearest_name(name, known);
  throw duet::Error(duet::Code::not_found, "No model " + duet::loaders::quote(name) + " was added to these options",
                    nearest.empty() ? "Add it first" : "The nearest is '" + nearest + "'");
}

duet_code handed_out(duet::Answer answer, duet_answer** out) {
  auto handle = std::make_unique<duet_answer>();
  handle->answer = std::move(answer);
  *out = handle.release();
  const duet::Answer& own = (*out)->answer;
  return own.code == duet::Code::ok ? DUET_OK : fail(own.code, own.message);
}

duet::Options with_load_sink(const duet_options& options, std::unique_ptr<CallbackLoadSink>& sink) {
  duet::Options own = options.options;
  if (options.load_callback != nullptr) {
    sink = std::make_unique<CallbackLoadSink>(options.load_callback, options.load_user);
    own.load_sink = sink.get();
  }
  return own;
}

const duet::GeneratedToken* token_at(const duet_answer* answer, std::size_t index) {
  return answer != nullptr && index < answer->answer.tokens.size() ? &answer->answer.tokens[index] : nullptr;
}

}  // namespace

duet_code duet::api::fail(Code code, std::string message) {
  last_message = std::move(message);
  return static_cast<duet_code>(code);
}

// ---- codes ----

const char* duet_code_name(duet_code code) { return duet::name_of(static_cast<duet::Code>(code)).data(); }
const char* duet_last_message(void) { return last_message.c_str(); }
const char* duet_version(void) { return duet::api::kVersion; }
void duet_string_free(char* text) { std::free(text); }

// ---- options ----

duet_options* duet_options_new(void) { return made<duet_options>(); }
void duet_options_free(duet_options* options) { delete options; }

duet_code duet_options_add_model(duet_options* options, const char* name, const char* path) {
  return with([&] { options->options.models.push_back({.name = name, .path = path}); }, options, name, path);
}

duet_code duet_options_add_adapter(duet_options* options, const char* model, const char* name, const char* path,
                                   double scale) {
  return with([&] { model_of(*options, model).adapters.push_back({.name = name, .path = path, .scale = scale}); },
              options, model, name, path);
}

duet_code duet_options_set_weights(duet_options* options, const char* model, duet_weight_type linear,
                                   duet_weight_type head, duet_weight_type embedding, int block_size,
                                   int double_quant) {
  const auto type = [](duet_weight_type value) {
    return checked<duet::WeightType>(value, DUET_WEIGHT_FP4, "duet_weight_type");
  };
  return with(
      [&] {
        model_of(*options, model).weights = {.linear = type(linear),
                                             .head = type(head),
                                             .embedding = type(embedding),
                                             .block_size = block_size,
                                             .double_quant = double_quant != 0};
      },
      options, model);
}

duet_code duet_options_set_chat_template(duet_options* options, const char* model, const char* family) {
  return with([&] { model_of(*options, model).chat_template = family; }, options, model, family);
}

duet_code duet_options_set_adapter_room(duet_options* options, const char* model, int slots, int rank) {
  return with(
      [&] {
        duet::ModelOptions& own = model_of(*options, model);
        own.adapter_slots = slots;
        own.adapter_rank = rank;
      },
      options, model);
}

duet_code duet_options_set_device(duet_options* options, duet_device device) {
  return with([&] { options->options.device = checked<duet::Device>(device, DUET_DEVICE_CUDA, "duet_device"); },
              options);
}

duet_code duet_options_set_kv_policy(duet_options* options, duet_kv_policy policy) {
  return with([&] { options->options.kv_policy = checked<duet::KvPolicy>(policy, DUET_KV_CLEAR, "duet_kv_policy"); },
              options);
}

duet_code duet_options_set_kv_type(duet_options* options, duet_kv_type type) {
  return with([&] { options->options.kv_type = checked<duet::KvType>(type, DUET_KV_TYPE_INT8, "duet_kv_type"); },
              options);
}

duet_code duet_options_set_budget(duet_options* options, uint64_t bytes) {
  return with([&] { options->options.budget = bytes; }, options);
}

duet_code duet_options_set_kv_tokens(duet_options* options, int64_t tokens) {
  return with([&] { options->options.kv_tokens = tokens; }, options);
}

duet_code duet_options_set_max_sequences(duet_options* options, int count) {
  return with([&] { options->options.max_sequences = count; }, options);
}

duet_code duet_options_set_threads(duet_options* options, int count) {
  return with([&] { options->options.threads = count; }, options);
}

duet_code duet_options_set_load_callback(duet_options* options, duet_load_callback callback, void* user) {
  return with(
      [&] {
        options->load_callback = callback;
        options->load_user = user;
      },
      options);
}

// ---- requests ----

duet_request* duet_request_new(void) { return made<duet_request>(); }
void duet_request_free(duet_request* request) { delete request; }

duet_code duet_request_set_model(duet_request* request, const char* model) {
  return with([&] { request->request.model = model; }, request, model);
}

duet_code duet_request_set_adapter(duet_request* request, const char* adapter, double scale) {
  return with(
      [&] {
        request->request.adapter = adapter;
        request->request.adapter_scale = scale;
      },
      request, adapter);
}

duet_code duet_request_add_message(duet_request* request, const char* role, const char* content) {
  return with([&] { request->request.messages.push_back({role, content}); }, request, role, content);
}

duet_code duet_request_set_prompt(duet_request* request, const char* text) {
  return with([&] { request->request.prompt = text; }, request, text);
}

duet_code duet_request_set_prompt_ids(duet_request* request, const int32_t* ids, size_t count) {
  return with([&] { request->request.prompt_ids.assign(ids, ids + count); }, request, ids);
}

duet_code duet_request_set_max_tokens(duet_request* request, int max_tokens) {
  return with([&] { request->request.max_tokens = max_tokens; }, request);
}

duet_code duet_request_set_length_limit(duet_request* request, int max_length_tokens, duet_length_policy policy) {
  return with(
      [&] {
        request->request.length_policy = checked<duet::LengthPolicy>(policy, DUET_LENGTH_SEGMENT, "duet_length_policy");
        request->request.max_length_tokens = max_length_tokens;
      },
      request);
}

duet_code duet_request_set_temperature(duet_request* request, double temperature) {
  return with([&] { request->request.sampling.temperature = temperature; }, request);
}

duet_code duet_request_set_top_k(duet_request* request, int top_k) {
  return with([&] { request->request.sampling.top_k = top_k; }, request);
}

duet_code duet_request_set_top_p(duet_request* request, double top_p) {
  return with([&] { request->request.sampling.top_p = top_p; }, request);
}

duet_code duet_request_set_min_p(duet_request* request, double min_p) {
  return with([&] { request->request.sampling.min_p = min_p; }, request);
}

duet_code duet_request_set_repetition_penalty(duet_request* request, double penalty) {
  return with([&] { request->request.sampling.repetition_penalty = penalty; }, request);
}

duet_code duet_request_add_logit_bias(duet_request* request, int32_t id, float bias) {
  return with([&] { request->request.sampling.logit_bias.push_back({id, bias}); }, request);
}

duet_code duet_request_set_seed(duet_request* request, uint64_t seed) {
  return with([&] { request->request.sampling.seed = seed; }, request);
}

duet_code duet_request_add_stop(duet_request* request, const char* stop) {
  return with([&] { request->request.stop.emplace_back(stop); }, request, stop);
}

duet_code duet_request_set_logprobs(duet_request* request, int count) {
  return with([&] { request->request.logprobs = count; }, request);
}

duet_code duet_request_set_priority(duet_request* request, int priority) {
  return with([&] { request->request.priority = priority; }, request);
}

duet_code duet_request_set_deadline(duet_request* request, double seconds) {
  return with([&] { request->request.deadline = seconds; }, request);
}

// ---- engine ----

duet_code duet_engine_open(const duet_options* options, duet_engine** engine) {
  if (engine != nullptr) *engine = nullptr;
  return with(
      [&] {
        std::unique_ptr<CallbackLoadSink> sink;
        *engine = new duet_engine(duet::Engine::open(with_load_sink(*options, sink)));
      },
      options, engine);
}

void duet_engine_close(duet_engine* engine) { delete engine; }

duet_code duet_plan(const duet_options* options, char** table) {
  return with([&] { *table = copied(duet::Engine::plan(options->options)); }, options, table);
}

duet_code duet_engine_submit(duet_engine* engine, const duet_request* request, duet_text_callback callback, void* user,
                             duet_ticket* ticket) {
  return with(
      [&] {
        auto sink = callback == nullptr ? nullptr : std::make_unique<CallbackSink>(callback, user);
        const std::lock_guard lock(engine->mutex);
        *ticket = engine->engine.submit(request->request, sink.get());
        if (sink != nullptr) engine->sinks.emplace(*ticket, std::move(sink));
      },
      engine, request, ticket);
}

duet_code duet_engine_wait(duet_engine* engine, duet_ticket ticket, duet_answer** answer) {
  return with(
      [&] {
        duet::Answer got = engine->engine.wait(ticket);
        {
          const std::lock_guard lock(engine->mutex);
          engine->sinks.erase(ticket);
        }
        return handed_out(std::move(got), answer);
      },
      engine, answer);
}

duet_code duet_engine_cancel(duet_engine* engine, duet_ticket ticket, int* cancelled) {
  return with(
      [&] {
        const bool done = engine->engine.cancel(ticket);
        if (cancelled != nullptr) *cancelled = done ? 1 : 0;
      },
      engine);
}

duet_code duet_engine_cancel_all(duet_engine* engine) {
  return with([&] { engine->engine.cancel_all(); }, engine);
}

duet_code duet_engine_run(duet_engine* engine, const duet_request* request, duet_text_callback callback, void* user,
                          duet_answer** answer) {
  return with(
      [&] {
        CallbackSink sink(callback, user);
        return handed_out(engine->engine.run(request->request, callback == nullptr ? nullptr : &sink), answer);
      },
      engine, request, answer);
}

// ---- answers ----

void duet_answer_free(duet_answer* answer) { delete answer; }

duet_code duet_answer_code(const duet_answer* answer) {
  return answer == nullptr ? DUET_INVALID_ARGUMENT : static_cast<duet_code>(answer->answer.code);
}
const char* duet_answer_message(const duet_answer* answer) {
  return answer == nullptr ? "" : answer->answer.message.c_str();
}
const char* duet_answer_text(const duet_answer* answer) { return answer == nullptr ? "" : answer->answer.text.c_str(); }
size_t duet_answer_text_bytes(const duet_answer* answer) { return answer == nullptr ? 0 : answer->answer.text.size(); }
const char* duet_answer_model(const duet_answer* answer) {
  return answer == nullptr ? "" : answer->answer.model.c_str();
}
const char* duet_answer_adapter(const duet_answer* answer) {
  return answer == nullptr ? "" : answer->answer.adapter.c_str();
}
duet_finish duet_answer_finish(const duet_answer* answer) {
  return answer == nullptr ? DUET_FINISH_NONE : static_cast<duet_finish>(answer->answer.finish);
}
size_t duet_answer_prompt_token_count(const duet_answer* answer) {
  return answer == nullptr ? 0 : answer->answer.prompt_ids.size();
}
int32_t duet_answer_prompt_token(const duet_answer* answer, size_t index) {
  return index < duet_answer_prompt_token_count(answer) ? answer->answer.prompt_ids[index] : -1;
}
size_t duet_answer_cached_token_count(const duet_answer* answer) {
  return answer == nullptr ? 0 : static_cast<size_t>(answer->answer.cached_tokens);
}
size_t duet_answer_token_count(const duet_answer* answer) {
  return answer == nullptr ? 0 : answer->answer.tokens.size();
}
int32_t duet_answer_token(const duet_answer* answer, size_t index) {
  const duet::GeneratedToken* token = token_at(answer, index);
  return token == nullptr ? -1 : token->id;
}
float duet_answer_token_logprob(const duet_answer* answer, size_t index) {
  const duet::GeneratedToken* token = token_at(answer, index);
  return token == nullptr ? 0 : token->logprob;
}
duet_timings duet_answer_timings(const duet_answer* answer) {
  if (answer == nullptr) return {};
  const duet::Timings& own = answer->answer.timings;
  return {own.queued, own.prefill, own.first_token, own.decode, own.total};
}
size_t duet_answer_best_count(const duet_answer* answer, size_t index) {
  const duet::GeneratedToken* token = token_at(answer, index);
  return token == nullptr ? 0 : token->best.size();
}
duet_code duet_answer_best(const duet_answer* answer, size_t index, size_t rank, int32_t* id, float* logprob) {
  return with(
      [&] {
        if (rank >= duet_answer_best_count(answer, index))
          throw duet::Error(duet::Code::invalid_argument, "The answer lists no such alternative",
                            "Ask duet_answer_best_count how many there are");
        const duet::TokenLogprob& best = answer->answer.tokens[index].best[rank];
        if (id != nullptr) *id = best.id;
        if (logprob != nullptr) *logprob = best.logprob;
      },
      answer);
}

// ---- routing ----

duet_rules* duet_rules_new(void) { return made<duet_rules>(); }
void duet_rules_free(duet_rules* rules) { delete rules; }

duet_code duet_rules_read(const char* path, duet_rules** rules) {
  if (rules != nullptr) *rules = nullptr;
  return with([&] { *rules = new duet_rules{duet::read_route_rules(path)}; }, path, rules);
}

duet_code duet_rules_set_models(duet_rules* rules, const char* fast, const char* deep) {
  return with(
      [&] {
        rules->rules.fast = fast;
        rules->rules.deep = deep;
      },
      rules, fast, deep);
}

duet_code duet_rules_set_threshold(duet_rules* rules, double threshold) {
  return with([&] { rules->rules.threshold = threshold; }, rules);
}

duet_code duet_rules_set_max_tokens(duet_rules* rules, int fast, int deep) {
  return with(
      [&] {
        rules->rules.fast_max_tokens = fast;
        rules->rules.deep_max_tokens = deep;
      },
      rules);
}

duet_code duet_engine_route(duet_engine* engine, const duet_request* request, const duet_rules* rules,
                            duet_text_callback callback, void* user, duet_answer** answer) {
  return with(
      [&] {
        CallbackSink sink(callback, user);
        duet::RoutedAnswer routed =
            engine->engine.route(request->request, rules == nullptr ? duet::RouteRules() : rules->rules,
                                 callback == nullptr ? nullptr : &sink);
        auto fast = std::make_unique<duet_answer>();
        fast->answer = std::move(routed.fast);
        const duet_code code = handed_out(std::move(routed.answer), answer);
        (*answer)->fast = std::move(fast);
        (*answer)->escalated = routed.escalated;
        (*answer)->confidence = routed.confidence;
        (*answer)->reason = std::move(routed.reason);
        return code;
      },
      engine, request, answer);
}

int duet_answer_escalated(const duet_answer* answer) { return answer != nullptr && answer->escalated ? 1 : 0; }
double duet_answer_confidence(const duet_answer* answer) { return answer == nullptr ? 0 : answer->confidence; }
const char* duet_answer_reason(const duet_answer* answer) { return answer == nullptr ? "" : answer->reason.c_str(); }
const duet_answer* duet_answer_fast(const duet_answer* answer) {
  return answer == nullptr ? nullptr : answer->fast.get();
}

// ---- adapters, tokenizers, what is going on ----

duet_code duet_engine_load_adapter(duet_engine* engine, const char* model, const char* name, const char* path,
                                   double scale) {
  return with([&] { engine->engine.load_adapter(model, {.name = name, .path = path, .scale = scale}); }, engine, model,
              name, path);
}

duet_code duet_engine_drop_adapter(duet_engine* engine, const char* model, const char* name) {
  return with([&] { engine->engine.drop_adapter(model, name); }, engine, model, name);
}

duet_code duet_engine_tokenize(const duet_engine* engine, const char* model, const char* text, int parse_special,
                               int32_t* ids, size_t capacity, size_t* count) {
  return with(
      [&] {
        if (ids == nullptr && capacity > 0)
          throw duet::Error(duet::Code::invalid_argument, "ids is NULL and capacity is not 0", "Pass room for the ids");
        const std::vector<std::int32_t> all = engine->engine.tokenize(model, text, parse_special != 0);
        std::copy_n(all.begin(), std::min(capacity, all.size()), ids);
        *count = all.size();
      },
      engine, model, text, count);
}

duet_code duet_engine_detokenize(const duet_engine* engine, const char* model, const int32_t* ids, size_t count,
                                 char** text) {
  return with([&] { *text = copied(engine->engine.detokenize(model, {ids, ids + count})); }, engine, model, ids, text);
}

duet_code duet_engine_counters(const duet_engine* engine, duet_counters* counters, size_t size) {
  return with(
      [&] {
        const duet::Counters now = engine->engine.counters();
        const duet_counters all = {.requests = now.requests,
                                   .finished = now.finished,
                                   .failed = now.failed,
                                   .cancelled = now.cancelled,
                                   .switches = now.switches,
                                   .steps = now.steps,
                                   .prompt_tokens = now.prompt_tokens,
                                   .cached_tokens = now.cached_tokens,
                                   .generated_tokens = now.generated_tokens,
                                   .evicted_pages = now.evicted_pages,
                                   .recomputed_tokens = now.recomputed_tokens,
                                   .total_pages = now.total_pages,
                                   .free_pages = now.free_pages,
                                   .cached_pages = now.cached_pages,
                                   .active_sequences = now.active_sequences,
                                   .waiting = now.waiting,
                                   .most_passed_over = now.most_passed_over,
                                   .switch_seconds = now.switch_seconds,
                                   .switch_p50 = now.switch_p50,
                                   .switch_p99 = now.switch_p99};
        std::memcpy(counters, &all, std::min(size, sizeof(all)));
      },
      engine, counters);
}

duet_code duet_engine_plan_table(const duet_engine* engine, char** text) {
  return with([&] { *text = copied(engine->engine.plan_table()); }, engine, text);
}

duet_code duet_engine_load_report(const duet_engine* engine, char** text) {
  return with([&] { *text = copied(engine->engine.load_report()); }, engine, text);
}

duet_code duet_engine_device_name(const duet_engine* engine, char** text) {
  return with([&] { *text = copied(engine->engine.device_name()); }, engine, text);
}
