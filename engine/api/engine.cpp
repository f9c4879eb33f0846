#include <algorithm>
#include <chrono>
#include <mutex>
#include <set>
#include <utility>

#include "duet/engine.h"
#include "engine/api/decide.h"
#include "engine/api/open.h"
#include "engine/api/prepare.h"
#include "engine/decision_rules.h"
#include "engine/router.h"
#include "loaders/loaders.h"
#include "loaders/storage_choice.h"

namespace duet {

std::string_view name_of(Finish finish) {
  switch (finish) {
    case Finish::none:
      return "none";
    case Finish::stop_token:
      return "stop_token";
    case Finish::stop_string:
      return "stop_string";
    case Finish::length:
      return "length";
    case Finish::cancelled:
      return "cancelled";
    case Finish::deadline:
      return "deadline";
    case Finish::error:
      return "error";
  }
  return "unknown";
}

class Engine::Impl {
 public:
  explicit Impl(api::OpenedEngine opened) : opened_(std::move(opened)) {}

  Ticket submit(const Request& request, TokenSink* sink) {
    try {
      TokenRequest ready = prepared(request);
      const std::lock_guard lock(mutex_);  // So that cancel_all sees every ticket that the runtime knows.
      return *live_.insert(opened_.runtime->submit(std::move(ready), sink)).first;
    } catch (const Error& error) {
      return opened_.runtime->submit_failed(failed(request, error.code(), error.what()));
    } catch (const std::exception& error) {
      return opened_.runtime->submit_failed(failed(request, Code::internal, error.what()));
    }
  }

  Answer wait(Ticket ticket) {
    Answer answer = opened_.runtime->wait(ticket);
    const std::lock_guard lock(mutex_);
    live_.erase(ticket);
    return answer;
  }

  void cancel_all() {
    std::set<Ticket> tickets;
    {
      const std::lock_guard lock(mutex_);
      ++cancelled_all_;
      tickets = live_;
    }
    for (const Ticket ticket : tickets) opened_.runtime->cancel(ticket);
  }

  RoutedAnswer route(const Request& request, const RouteRules& rules, TokenSink* sink) {
    RoutedAnswer routed;
    const std::string problem = check_route_rules(rules);
    if (!problem.empty()) {
      routed.answer =
          failed(request, Code::invalid_argument, "The rules of the router make no sense: " + problem + ".");
      return routed;
    }
    const std::uint64_t epoch = cancel_epoch();
    const auto begin = std::chrono::steady_clock::now();
    Request own = request;
    own.adapter.clear();
    own.model = rules.fast;
    own.max_tokens = rules.fast_max_tokens;
    routed.fast = wait_unless_cancelled(submit(own, nullptr), epoch);
    RouteDecision decision = duet::decide(routed.fast, rules);
    routed.escalated = decision.escalate;
    routed.confidence = decision.confidence;
    routed.reason = std::move(decision.reason);
    if (!routed.escalated) {
      routed.answer = routed.fast;
      if (sink != nullptr && !routed.answer.text.empty()) sink->on_text(routed.answer.text);
      return routed;
    }
    own.model = rules.deep;
    own.max_tokens = rules.deep_max_tokens;
    if (own.deadline > 0) {
      const double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      own.deadline = std::max(own.deadline - spent, 1e-9);
    }
    routed.answer = wait_unless_cancelled(submit(own, sink), epoch);
    return routed;
  }

  Decision decide(const DecisionRequest& request, const DecisionRules* rules) {
    const auto begin = std::chrono::steady_clock::now();
    Decision decision;
    try {
      const DecisionProblem problem = api::problem_of(request);
      if (rules == nullptr) {
        decision = ask_model(request, request.model, problem, nullptr);
      } else {
        if (const std::string wrong = check_decision_rules(*rules); !wrong.empty())
          throw Error(Code::invalid_argument, "The rules make no sense: " + wrong, "Correct them");
        decision = ask_model(request, rules->fast, problem, rules);
        if (!rules->deep.empty()) escalate(request, *rules, problem, decision);
      }
    } catch (const Error& error) {
      decision = {.code = error.code(), .message = error.what()};
    } catch (const std::exception& error) {
      decision = {.code = Code::internal, .message = error.what()};
    }
    decision.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return decision;
  }

  void load_adapter(const std::string& model_name, const AdapterOptions& adapter) {
    const std::lock_guard loading(loading_);
    const int model = api::find_model(opened_.models, model_name);
    Options options;  // The same rules as at open.
    options.models = {{.name = model_name, .path = "-", .adapters = {adapter}}};
    api::check_options(options);
    const auto source = loaders::open_adapter(adapter.path, parts(model).spec, model_name);
    std::vector<std::string> notes;
    auto head = api::read_kev_head(parts(model), opened_.plan.bases[base_of(model)].path, adapter.path, notes);
    opened_.runtime->load_adapter(model, adapter.name, *source, adapter.scale);
    const std::lock_guard lock(mutex_);
    adapters(model).push_back(adapter.name);
    if (head != nullptr) heads(model)[adapter.name] = std::move(head);
  }

  void drop_adapter(const std::string& model_name, const std::string& adapter) {
    const std::lock_guard loading(loading_);
    const int model = api::find_model(opened_.models, model_name);
    opened_.runtime->drop_adapter(model, adapter);
    const std::lock_guard lock(mutex_);
    std::erase(adapters(model), adapter);
    heads(model).erase(adapter);
  }

  const api::ModelParts& model(const std::string& name) const { return parts(api::find_model(opened_.models, name)); }
  WeightType weight_type(const std::string& name) const {
    const int model = api::find_model(opened_.models, name);
    return loaders::main_weight_type(opened_.plan.bases[base_of(model)].tensors);
  }
  const api::OpenedEngine& opened() const { return opened_; }

 private:
  const api::ModelParts& parts(int model) const { return opened_.models[static_cast<std::size_t>(model)]; }
  api::KevHeads& heads(int model) { return opened_.heads[static_cast<std::size_t>(model)]; }
  std::size_t base_of(int model) const {
    return static_cast<std::size_t>(opened_.plan.models[static_cast<std::size_t>(model)].base);
  }
  std::vector<std::string>& adapters(int model) { return opened_.adapters[static_cast<std::size_t>(model)]; }

  TokenRequest prepared(const Request& request) {
    const int model = api::find_model(opened_.models, request.model);
    std::vector<std::string> loaded;
    {
      const std::lock_guard lock(mutex_);
      loaded = adapters(model);
    }
    return api::prepare(request, parts(model), model, loaded);
  }

  static Answer failed(const Request& request, Code code, std::string message) {
    Answer answer;
    answer.code = code;
    answer.message = std::move(message);
    answer.model = request.model;
    answer.adapter = request.adapter;
    answer.finish = Finish::error;
    return answer;
  }

  /// Throws Error when the model cannot be asked; a failure while it runs is the decision's.
  Decision ask_model(const DecisionRequest& request, const std::string& name, const DecisionProblem& problem,
                     const DecisionRules* rules) {
    const int index = api::find_model(opened_.models, name);
    const api::ModelParts& model = parts(index);
    if (!model.laya) return ask_kev(request, index, problem, rules);
    Decision decision;
    if (problem.questions.empty()) return decision;
    api::LayaQuestions questions = api::prepare_laya(problem, model);
    const auto batch = std::make_shared<EncoderBatch>(std::move(questions.rows));
    TokenRequest ready;
    ready.model = index;
    ready.priority = request.priority;
    ready.deadline = request.deadline;
    ready.batch = batch;
    const Answer answer = wait(submit_ready(std::move(ready)));
    if (answer.code != Code::ok) return {.code = answer.code, .message = answer.message};
    questions.rows = std::move(*batch);
    api::answer_laya(model, rules, questions);
    for (const EncodedRow& row : questions.rows) decision.input_tokens += static_cast<std::int64_t>(row.ids.size());
    decision.answers = std::move(questions.answers);
    return decision;
  }

  /// The first question computes the state, whose pages the others then find.
  Decision ask_kev(const DecisionRequest& request, int index, const DecisionProblem& problem,
                   const DecisionRules* rules) {
    const api::ModelParts& model = parts(index);
    std::string adapter;
    std::shared_ptr<const PointerHead> head;
    {
      const std::lock_guard lock(mutex_);
      adapter = adapters(index).empty() ? "none" : adapters(index).front();
      const auto found = heads(index).find(adapter);
      if (found != heads(index).end()) head = found->second;
    }
    if (head == nullptr)
      throw Error(Code::unsupported, "Model '" + model.name + "' writes text and has no decision head",
                  "Ask it with run, or name a decision model");
    if (problem.questions.empty()) return {};
    api::KevQuestions questions = api::prepare_kev(problem, model, adapter, std::move(head));
    Decision decision;
    decision.input_tokens = questions.input_tokens;
    std::vector<Ticket> tickets;
    const auto take = [&](Ticket ticket) {
      Answer answer = wait(ticket);
      if (answer.code == Code::ok || decision.code != Code::ok) return;
      decision.code = answer.code;
      decision.message = std::move(answer.message);
    };
    for (std::size_t i = 0; i < questions.requests.size(); ++i) {
      TokenRequest ready = questions.requests[i];
      ready.model = index;
      ready.priority = request.priority;
      ready.deadline = request.deadline;
      const Ticket ticket = submit_ready(std::move(ready));
      if (i > 0) {
        tickets.push_back(ticket);
        continue;
      }
      take(ticket);
      if (decision.code != Code::ok) return decision;
    }
    for (const Ticket ticket : tickets) take(ticket);
    if (decision.code != Code::ok) return decision;
    api::answer_kev(model, rules, questions);
    decision.answers = std::move(questions.answers);
    return decision;
  }

  /// Asks the deep model what the fast one is not sure of.
  void escalate(const DecisionRequest& request, const DecisionRules& rules, const DecisionProblem& problem,
                Decision& decision) {
    DecisionProblem unsure{.state = problem.state, .questions = {}};
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < decision.answers.size(); ++i) {
      if (!escalates(decision.answers[i], rules)) continue;
      unsure.questions.push_back(problem.questions[i]);
      places.push_back(i);
    }
    if (places.empty()) return;
    const Decision deep = ask_model(request, rules.deep, unsure, &rules);
    decision.input_tokens += deep.input_tokens;
    for (std::size_t k = 0; k < places.size(); ++k) {
      DecisionAnswer& answer = decision.answers[places[k]];
      if (deep.code != Code::ok) {
        answer.reason += "; " + rules.deep + " failed: " + deep.message;
        continue;
      }
      const std::string reason = answer.reason;
      answer = deep.answers[k];
      answer.escalated = true;
      answer.reason = reason;
    }
  }

  Ticket submit_ready(TokenRequest ready) {
    const std::lock_guard lock(mutex_);  // So that cancel_all sees every ticket that the runtime knows.
    return *live_.insert(opened_.runtime->submit(std::move(ready), nullptr)).first;
  }

  std::uint64_t cancel_epoch() {
    const std::lock_guard lock(mutex_);
    return cancelled_all_;
  }

  // A cancel_all between two requests of one route finds neither of them live; it must end the second all the same.
  Answer wait_unless_cancelled(Ticket ticket, std::uint64_t epoch) {
    if (cancel_epoch() != epoch) opened_.runtime->cancel(ticket);
    return wait(ticket);
  }

  api::OpenedEngine opened_;
  std::mutex loading_;  // One adapter comes or goes at a time.
  std::mutex mutex_;    // Guards what follows, and opened_.adapters.
  std::set<Ticket> live_;
  std::uint64_t cancelled_all_ = 0;
};

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine& Engine::operator=(Engine&&) noexcept = default;
Engine::~Engine() = default;

Engine Engine::open(const Options& options) { return Engine(std::make_unique<Impl>(api::open_engine(options))); }
std::string Engine::plan(const Options& options) { return table_of(api::plan_engine(options)); }

Ticket Engine::submit(const Request& request, TokenSink* sink) { return impl_->submit(request, sink); }
Answer Engine::wait(Ticket ticket) { return impl_->wait(ticket); }
bool Engine::cancel(Ticket ticket) { return impl_->opened().runtime->cancel(ticket); }
void Engine::cancel_all() { impl_->cancel_all(); }
Answer Engine::run(const Request& request, TokenSink* sink) { return impl_->wait(impl_->submit(request, sink)); }
RoutedAnswer Engine::route(const Request& request, const RouteRules& rules, TokenSink* sink) {
  return impl_->route(request, rules, sink);
}

Decision Engine::decide(const DecisionRequest& request) { return impl_->decide(request, nullptr); }
Decision Engine::decide(const DecisionRequest& request, const DecisionRules& rules) {
  return impl_->decide(request, &rules);
}

void Engine::load_adapter(const std::string& model, const AdapterOptions& adapter) {
  impl_->load_adapter(model, adapter);
}
void Engine::drop_adapter(const std::string& model, const std::string& adapter) { impl_->drop_adapter(model, adapter); }

std::vector<std::int32_t> Engine::tokenize(const std::string& model, std::string_view text, bool parse_special) const {
  api::check_size(text.size());
  api::check_utf8(text, "the text");
  return api::tokenizer_of(impl_->model(model))
      .encode(text, {.add_special_tokens = false, .parse_special_tokens = parse_special});
}

std::string Engine::detokenize(const std::string& model, const std::vector<std::int32_t>& ids) const {
  return api::tokenizer_of(impl_->model(model)).decode(ids, false);
}

Counters Engine::counters() const { return impl_->opened().runtime->counters(); }
std::string Engine::plan_table() const { return table_of(impl_->opened().plan); }
std::string Engine::load_report() const { return impl_->opened().report; }
std::string Engine::device_name() const { return impl_->opened().device; }
WeightType Engine::weight_type(const std::string& model) const { return impl_->weight_type(model); }

}  // namespace duet
