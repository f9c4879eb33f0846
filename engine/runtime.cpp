// Tickets, adapters and the thread around the worker.
#include "engine/runtime.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "duet/error.h"
#include "engine/adapter_table.h"
#include "engine/sequence.h"
#include "engine/worker.h"

namespace duet {

namespace {

/// What a ticket stands for.
struct Record {
  bool done = false;
  Answer answer;
};

/// Work for the worker's thread between two steps.
struct Errand {
  std::function<void()> work;
  std::exception_ptr error;
  bool done = false;
};

[[noreturn]] void refuse(const std::string& what, const std::string& fix = {}) {
  throw Error(Code::invalid_argument, what, fix);
}

void check_deadline(const TokenRequest& request) {
  if (!std::isfinite(request.deadline) || request.deadline < 0)
    refuse(fmt::format("deadline is {} s", request.deadline), "Give seconds from submission, or 0 for none");
}

void check_rows(const EncoderBatch& rows, const ModelSpec& spec, const std::string& model) {
  if (spec.kind != ModelKind::encoder)
    refuse(fmt::format("Model \"{}\" is a decoder and was given rows to encode", model));
  if (rows.empty()) refuse("There are no rows to encode");
  for (const EncodedRow& row : rows)
    if (row.ids.size() > static_cast<std::size_t>(spec.max_position_tokens))
      throw Error(Code::no_room, fmt::format("A row has {} tokens; the longest that model \"{}\" reads has {}",
                                             row.ids.size(), model, spec.max_position_tokens));
}

/// The prompt of a request that reads rows: never cut.
std::vector<PromptPiece> whole_prompt(TokenRequest& request, const PlannedModel& planned) {
  const std::size_t tokens = request.prompt_ids.size();
  if (tokens > static_cast<std::size_t>(planned.max_context_tokens))
    throw Error(Code::no_room,
                fmt::format("The prompt has {} tokens; the longest sequence of model \"{}\" is {} tokens", tokens,
                            planned.name, planned.max_context_tokens));
  request.max_tokens = 0;
  return {{.begin = 0, .end = tokens}};
}

void check_readout(const HiddenRows& readout, std::size_t prompt_tokens) {
  const auto& positions = readout.positions;
  const bool ascending = std::is_sorted(positions.begin(), positions.end(), std::less_equal<>());
  if (positions.empty() || !ascending || positions.front() < 0 ||
      static_cast<std::size_t>(positions.back()) >= prompt_tokens)
    refuse("The positions of rows to read are not ascending positions of the prompt");
}

void check_request(const TokenRequest& request, const ModelSpec& spec, const RuntimeModel& model,
                   const std::string& name) {
  check_deadline(request);
  if (request.batch != nullptr) return check_rows(*request.batch, spec, name);
  if (spec.kind == ModelKind::encoder)
    refuse(fmt::format("Model \"{}\" is an encoder: it answers typed questions and writes no text", name),
           "Ask it with decide");
  if (request.prompt_ids.empty()) refuse("The prompt is empty", "Give at least one token");
  for (std::size_t i = 0; i < request.prompt_ids.size(); ++i)
    if (request.prompt_ids[i] < 0 || request.prompt_ids[i] >= spec.vocabulary)
      refuse(fmt::format("Token {} of the prompt is {}; the model's vocabulary has {}", i, request.prompt_ids[i],
                         spec.vocabulary));
  if (!std::isfinite(request.adapter_scale)) refuse(fmt::format("adapter_scale is {}", request.adapter_scale));
  if (request.readout != nullptr) return check_readout(*request.readout, request.prompt_ids.size());
  if (request.max_tokens < 1) refuse(fmt::format("max_tokens is {}", request.max_tokens), "Give 1 or more");
  if (request.max_length_tokens < 1)
    refuse(fmt::format("max_length_tokens is {}", request.max_length_tokens), "Give 1 or more");
  if (request.logprobs < 0 || request.logprobs > kMaxLogprobs)
    refuse(fmt::format("logprobs is {}", request.logprobs), fmt::format("Give 0 to {}", kMaxLogprobs));
  if (const std::string sentence = check_sampling(request.sampling, spec.vocabulary); !sentence.empty())
    refuse(sentence);
  if (const std::string sentence = check_stop_strings(request.stop); !sentence.empty()) refuse(sentence);
  if (!request.stop.empty() && model.tokenizer == nullptr)
    refuse("Stop strings were given and the model has no tokenizer");
}

Answer failed_answer(const Error& error) {
  Answer answer;
  answer.code = error.code();
  answer.message = error.what();
  answer.finish = Finish::error;
  return answer;
}

}  // namespace

class Runtime::Impl {
 public:
  Impl(Backend& backend, const Plan& plan, std::vector<RuntimeModel> models, const RuntimeOptions& options);
  ~Impl();

  Ticket submit(TokenRequest request, TokenSink* sink);
  Ticket submit_failed(Answer answer);
  Answer wait(Ticket ticket);
  bool cancel(Ticket ticket);
  void load_adapter(int model, const std::string& name, const AdapterSource& source, double scale);
  void drop_adapter(int model, const std::string& name);
  Counters counters() const;

 private:
  using Lock = std::unique_lock<std::mutex>;

  void prepare(Sequence& sequence, TokenRequest request) const;
  void check_model(int model) const;

  // Called with the mutex held.
  Ticket end_at_once(Answer answer);
  void run_errand(Lock& lock, std::function<void()> work);

  // The worker's thread.
  void run();
  bool take_mail();
  void keep_answer(Sequence& sequence);

  Backend& backend_;
  const Plan plan_;
  const std::vector<RuntimeModel> models_;

  mutable std::mutex mutex_;
  std::condition_variable mail_;   ///< Something for the worker.
  std::condition_variable ended_;  ///< A request or an errand ended.
  AdapterTable adapters_;
  std::unordered_map<Ticket, Record> records_;
  std::vector<std::unique_ptr<Sequence>> new_sequences_;
  std::vector<Ticket> new_cancels_;
  std::vector<Errand*> new_errands_;
  Ticket last_ticket_ = 0;
  std::uint64_t requests_ = 0;
  std::uint64_t refused_ = 0;
  int waiters_ = 0;
  bool closing_ = false;
  Counters published_;

  // The worker's thread alone. `received_*` swap with `new_*`, so that neither allocates in a steady state.
  Worker worker_;
  std::vector<std::unique_ptr<Sequence>> received_sequences_;
  std::vector<Ticket> received_cancels_;
  std::vector<Errand*> received_errands_;
  std::thread thread_;
};

namespace {

std::vector<RuntimeModel> checked(std::vector<RuntimeModel> models, const Plan& plan) {
  if (models.size() != plan.models.size())
    throw Error(Code::internal,
                fmt::format("The plan has {} models and the runtime was given {}", plan.models.size(), models.size()));
  for (std::size_t i = 0; i < models.size(); ++i) {
    const ModelSpec& spec = plan.bases[static_cast<std::size_t>(plan.models[i].base)].spec;
    std::int32_t& usable = models[i].usable_vocabulary;
    if (usable < 0)
      throw Error(Code::internal,
                  fmt::format("Model \"{}\" has a usable vocabulary of {}", plan.models[i].name, usable));
    usable = usable == 0 ? spec.vocabulary : std::min<std::int32_t>(usable, spec.vocabulary);
  }
  return models;
}

RuntimeOptions checked(const RuntimeOptions& options) {
  if (options.max_passed_over < 0)
    throw Error(Code::invalid_argument, fmt::format("max_passed_over is {}", options.max_passed_over),
                "Give 0 or more");
  if (options.steps_per_turn < 1)
    throw Error(Code::invalid_argument, fmt::format("steps_per_turn is {}", options.steps_per_turn), "Give 1 or more");
  return options;
}

}  // namespace

Runtime::Impl::Impl(Backend& backend, const Plan& plan, std::vector<RuntimeModel> models, const RuntimeOptions& options)
    : backend_(backend),
      plan_(plan),
      models_(checked(std::move(models), plan)),
      adapters_(plan_),
      worker_(backend_, plan_, models_, checked(options), [this](Sequence& sequence) { keep_answer(sequence); }) {
  published_ = worker_.counters();
  thread_ = std::thread([this] { run(); });
}

Runtime::Impl::~Impl() {
  {
    const Lock lock(mutex_);
    closing_ = true;
  }
  mail_.notify_one();
  thread_.join();
  Lock lock(mutex_);
  ended_.wait(lock, [this] { return waiters_ == 0; });
}

// ---- requests ----

Ticket Runtime::Impl::submit(TokenRequest request, TokenSink* sink) {
  auto sequence = std::make_unique<Sequence>();
  sequence->submitted = worker_.now();
  Lock lock(mutex_, std::defer_lock);
  try {
    prepare(*sequence, std::move(request));
    lock.lock();
    const TokenRequest& wanted = sequence->request;
    sequence->adapter = adapters_.choose(wanted.model, wanted.adapter, wanted.adapter_scale);
  } catch (const Error& error) {
    Answer answer = failed_answer(error);
    answer.model = std::move(sequence->answer.model);
    answer.adapter = std::move(sequence->request.adapter);
    if (!lock.owns_lock()) lock.lock();
    return end_at_once(std::move(answer));
  }
  const Ticket ticket = ++last_ticket_;
  ++requests_;
  sequence->ticket = ticket;
  sequence->arrival = ticket;
  sequence->sink = sink;
  sequence->answer.adapter = sequence->adapter.name;
  if (sequence->request.deadline > 0) sequence->deadline = sequence->submitted + sequence->request.deadline;
  adapters_.add_user(sequence->request.model, sequence->adapter);
  records_.emplace(ticket, Record{});
  new_sequences_.push_back(std::move(sequence));
  lock.unlock();
  mail_.notify_one();
  return ticket;
}

/// Checks the request and makes the sequence ready to run. Throws Error.
void Runtime::Impl::prepare(Sequence& sequence, TokenRequest request) const {
  sequence.request = std::move(request);
  check_model(sequence.request.model);
  const auto index = static_cast<std::size_t>(sequence.request.model);
  const PlannedModel& planned = plan_.models[index];
  sequence.answer.model = planned.name;
  check_request(sequence.request, plan_.bases[static_cast<std::size_t>(planned.base)].spec, models_[index],
                planned.name);
  if (sequence.request.batch != nullptr) {
    sequence.request.adapter = "none";
    return;
  }
  if (sequence.request.readout != nullptr)
    sequence.pieces = whole_prompt(sequence.request, planned);
  else
    sequence.pieces = cut_prompt(sequence.request, planned.name, planned.max_context_tokens, sequence.answer.cut);
  sequence.answer.tokens.reserve(static_cast<std::size_t>(sequence.request.max_tokens) * sequence.pieces.size());
  begin_piece(sequence, 0, models_[index].tokenizer.get());
  std::string& adapter = sequence.request.adapter;
  if (adapter.empty()) adapter = models_[index].default_adapter;
  if (adapter.empty()) adapter = "none";
}

Ticket Runtime::Impl::submit_failed(Answer answer) {
  const Lock lock(mutex_);
  return end_at_once(std::move(answer));
}

Ticket Runtime::Impl::end_at_once(Answer answer) {
  const Ticket ticket = ++last_ticket_;
  ++requests_;
  ++refused_;
  records_.emplace(ticket, Record{.done = true, .answer = std::move(answer)});
  return ticket;
}

Answer Runtime::Impl::wait(Ticket ticket) {
  Lock lock(mutex_);
  const auto missing = [&] {
    return failed_answer(
        Error(Code::invalid_argument, fmt::format("Ticket {} does not exist or was waited for already", ticket)));
  };
  if (records_.find(ticket) == records_.end()) return missing();
  ++waiters_;
  const auto done = [&] {
    const auto record = records_.find(ticket);
    return record == records_.end() || record->second.done;
  };
  ended_.wait(lock, done);
  if (--waiters_ == 0 && closing_) ended_.notify_all();
  const auto node = records_.extract(ticket);
  return node.empty() ? missing() : std::move(node.mapped().answer);
}

bool Runtime::Impl::cancel(Ticket ticket) {
  {
    const Lock lock(mutex_);
    const auto record = records_.find(ticket);
    if (record == records_.end() || record->second.done) return false;
    new_cancels_.push_back(ticket);
  }
  mail_.notify_one();
  return true;
}

Counters Runtime::Impl::counters() const {
  const Lock lock(mutex_);
  Counters counters = published_;
  counters.requests = requests_;
  counters.failed += refused_;
  counters.waiting += static_cast<int>(new_sequences_.size());
  return counters;
}

// ---- adapters ----

void Runtime::Impl::check_model(int model) const {
  if (model < 0 || static_cast<std::size_t>(model) >= models_.size())
    throw Error(Code::not_found, fmt::format("There is no model {}; the engine holds {}", model, models_.size()));
}

/// Has the worker's thread do `work` between two steps and waits for it. Throws what it throws.
void Runtime::Impl::run_errand(Lock& lock, std::function<void()> work) {
  Errand errand{.work = std::move(work), .error = nullptr, .done = false};
  if (closing_) throw Error(Code::cancelled, "The engine is closing");
  new_errands_.push_back(&errand);
  mail_.notify_one();
  ++waiters_;
  ended_.wait(lock, [&] { return errand.done; });
  if (--waiters_ == 0 && closing_) ended_.notify_all();
  if (errand.error) std::rethrow_exception(errand.error);
}

void Runtime::Impl::load_adapter(int model, const std::string& name, const AdapterSource& source, double scale) {
  check_model(model);
  Lock lock(mutex_);
  const int slot = adapters_.reserve(model, name, source.spec(), scale);
  try {
    run_errand(lock, [&] { backend_.load_adapter(model, slot, source, static_cast<float>(scale)); });
  } catch (...) {
    adapters_.make_empty(model, slot);
    throw;
  }
  adapters_.make_ready(model, slot);
}

void Runtime::Impl::drop_adapter(int model, const std::string& name) {
  check_model(model);
  Lock lock(mutex_);
  const int slot = adapters_.retire(model, name);
  try {
    run_errand(lock, [&] { backend_.drop_adapter(model, slot); });
  } catch (...) {
    adapters_.make_ready(model, slot);
    throw;
  }
  adapters_.make_empty(model, slot);
}

// ---- the worker's thread ----

void Runtime::Impl::run() {
  while (take_mail()) worker_.step();
}

/// Waits until there is something to do and takes it over. False when the runtime closes: everything has ended then.
bool Runtime::Impl::take_mail() {
  bool closing = false;
  {
    Lock lock(mutex_);
    published_ = worker_.counters();
    if (worker_.idle())
      mail_.wait(lock, [this] {
        return closing_ || !new_sequences_.empty() || !new_cancels_.empty() || !new_errands_.empty();
      });
    received_sequences_.swap(new_sequences_);
    received_cancels_.swap(new_cancels_);
    received_errands_.swap(new_errands_);
    closing = closing_;
  }
  for (std::unique_ptr<Sequence>& sequence : received_sequences_) worker_.add(std::move(sequence));
  received_sequences_.clear();
  for (const Ticket ticket : received_cancels_) worker_.cancel(ticket);
  received_cancels_.clear();
  for (Errand* errand : received_errands_) {
    try {
      errand->work();
    } catch (...) {
      errand->error = std::current_exception();
    }
    {
      const Lock lock(mutex_);
      errand->done = true;
    }
    ended_.notify_all();
  }
  received_errands_.clear();
  if (closing) worker_.cancel_all();
  return !closing;
}

void Runtime::Impl::keep_answer(Sequence& sequence) {
  {
    const Lock lock(mutex_);
    adapters_.drop_user(sequence.request.model, sequence.adapter);
    Record& record = records_.at(sequence.ticket);
    record.answer = std::move(sequence.answer);
    record.done = true;
    published_ = worker_.counters();
  }
  ended_.notify_all();
}

// ---- the door ----

Runtime::Runtime(Backend& backend, const Plan& plan, std::vector<RuntimeModel> models, const RuntimeOptions& options)
    : impl_(std::make_unique<Impl>(backend, plan, std::move(models), options)) {}
Runtime::~Runtime() = default;

Ticket Runtime::submit(TokenRequest request, TokenSink* sink) { return impl_->submit(std::move(request), sink); }
Ticket Runtime::submit_failed(Answer answer) { return impl_->submit_failed(std::move(answer)); }
Answer Runtime::wait(Ticket ticket) { return impl_->wait(ticket); }
bool Runtime::cancel(Ticket ticket) { return impl_->cancel(ticket); }
void Runtime::load_adapter(int model, const std::string& name, const AdapterSource& source, double scale) {
  impl_->load_adapter(model, name, source, scale);
}
void Runtime::drop_adapter(int model, const std::string& name) { impl_->drop_adapter(model, name); }
Counters Runtime::counters() const { return impl_->counters(); }

}  // namespace duet
