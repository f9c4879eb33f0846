#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "duet/engine.h"
#include "engine/backend.h"
#include "engine/plan.h"
#include "engine/request.h"
#include "engine/tokenizer.h"

namespace duet {

/// What the runtime must know of a model beyond its plan.
struct RuntimeModel {
  /// Turns ids into text; null: answers have ids and no text (and stop strings are refused).
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<std::int32_t> end_ids;   ///< Any of them ends an answer.
  std::int32_t usable_vocabulary = 0;  ///< Ids at and above it are never generated; 0: the spec's vocabulary.
  std::string default_adapter;         ///< Of requests that name none; empty: the base alone.
};

struct RuntimeOptions {
  KvPolicy kv_policy = KvPolicy::keep;
  int max_passed_over = 8;  ///< See scheduler.h.
  /// Steps that one model makes in a row while another has sequences in progress (policy keep).
  int steps_per_turn = 8;
};

/// The worker: one thread that runs requests of all models, one step at a time.
///
/// A request waits in the scheduler until a sequence is free (plan.limits.max_batch_sequences in progress, of all
/// models) and the pool holds pages for all its tokens; then its prompt is prefilled in chunks and it is decoded
/// together with the others of its model. Models with sequences in progress take turns of `steps_per_turn` steps. When
/// a sequence grows and no page is left, the least important one in progress (lowest priority, then latest arrival)
/// gives its pages back and waits again in its old place; what was lost is computed again, and its answer is the same.
/// Only that interrupts a request in progress, never a more important one that waits.
/// With KvPolicy::clear a model runs until nothing of it is in progress, and all cached pages go when another starts.
///
/// Length: a prompt over `max_length_tokens` (or over what its context leaves beside `max_tokens`, when cutting was
/// asked for)
///   reject    fails with Code::no_room and both numbers;
///   truncate  keeps its first quarter of the limit and fills the rest with its end: the middle goes, Answer::cut says
///             what; Answer::prompt_ids are the ids that were run;
///   segment   is cut into pieces of at most the limit, in order. Each is run as a prompt of its own (with max_tokens,
///             stop strings and draws of its own); the texts are joined by a newline, the tokens in order. `finish` and
///             `stop_id` are the last piece's; Cut::segments says how many there were.
/// A request that can never fit (prompt + max_tokens above the model's longest sequence) fails at once.
///
/// Threads: every function may be called from any thread but the worker (not from a TokenSink). Sinks are called on the
/// worker without locks. A step allocates nothing on the device; on the host it allocates only for log-probabilities
/// and long text pieces.
class Runtime {
 public:
  /// `models[i]` belongs to plan.models[i]. `backend` must outlive the runtime, its weights must be loaded.
  /// Throws Error when plan and models do not match.
  Runtime(Backend& backend, const Plan& plan, std::vector<RuntimeModel> models, const RuntimeOptions& options);
  ~Runtime();  ///< Cancels what is in progress and joins the worker; answers never waited for are dropped.
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Never throws for a bad request: the answer says what was wrong. `sink` may be null and must outlive the request.
  Ticket submit(TokenRequest request, TokenSink* sink = nullptr);
  /// A ticket that already ended with `answer`: for a request that failed before it had ids.
  Ticket submit_failed(Answer answer);
  /// Blocks until the request ended. A ticket that does not exist or was waited for gives Code::invalid_argument.
  Answer wait(Ticket ticket);
  /// Takes effect within one step; false when the request had already ended.
  bool cancel(Ticket ticket);

  /// Puts an adapter into a free slot between two steps; blocks until it is there. Throws Error: no_room when no slot
  /// is free or the adapter is larger than one, invalid_argument when the name is taken, and what the source throws.
  void load_adapter(int model, const std::string& name, const AdapterSource& source, double scale);
  /// Frees the slot. Throws Error: not_found, or invalid_argument while requests (waiting ones too) use it.
  void drop_adapter(int model, const std::string& name);

  Counters counters() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace duet
