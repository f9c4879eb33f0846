#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "duet/decide.h"
#include "duet/error.h"
#include "duet/export.h"

/// Duet's public interface: open an engine on one or more models, submit requests, wait for answers.
///
///     duet::Options options;
///     options.models = {{.name = "laya", .path = "models/base"}};
///     options.models[0].adapters = {{.name = "laya", .path = "models/laya"}};
///     duet::Engine engine = duet::Engine::open(options);
///     duet::Request request;
///     request.model = "laya";
///     request.messages = {{"user", "My card was charged twice"}};
///     duet::Answer answer = engine.run(request);
///     std::puts(answer.code == duet::Code::ok ? answer.text.c_str() : answer.message.c_str());
///
/// Units: sizes are bytes unless a name says otherwise (`_tokens`, `_pages`); times are seconds. Text is UTF-8.
/// Threads: an Engine may be used from any number of threads; one worker thread of its own runs the models in turn.
/// Failures: opening throws duet::Error; a request's failure is a value (`Answer::code`, `Answer::message`).
/// docs/embedding.md shows a whole program.
namespace duet {

enum class Device { automatic, host, cuda };
enum class KvPolicy { keep, clear };                    ///< What a switch of models does with the other's pages.
enum class KvType { automatic, f32, f16, bf16, int8 };  ///< automatic: f32 on the host, f16 on a card.
enum class LengthPolicy { reject, truncate, segment };  ///< What happens to a prompt over `max_length_tokens`.
enum class WeightType { as_stored, f32, f16, bf16, int8, nf4, fp4, automatic };
enum class Finish { none, stop_token, stop_string, length, cancelled, deadline, error };

DUET_API std::string_view name_of(Finish finish);

/// How weights are held in memory. `as_stored` keeps 16-bit and 4-bit checkpoints as they are; nf4, fp4 and int8
/// quantise 16/32-bit matrices on load, bit for bit as bitsandbytes does (int8: absmax blocks, see docs/formats.md).
/// `automatic` is int8 for the matrices of a Kev (a model that has a Kev's head, or an adapter that has) whose
/// checkpoint is in 16 or 32 bits; as_stored for every other model, and where a model that is no Kev holds the same
/// base as it is stored: then both share it.
struct WeightOptions {
  WeightType linear = WeightType::automatic;
  WeightType head = WeightType::as_stored;  ///< lm_head; with a tied head the embedding's type rules both.
  WeightType embedding = WeightType::as_stored;
  int block_size = 64;        ///< 4-bit: 32..4096, a power of two; int8: 32 or 64.
  bool double_quant = false;  ///< 4-bit only: scales quantised again in blocks of 256.
};

struct AdapterOptions {
  std::string name = {};  ///< Unique within its model; requests choose by it.
  std::string path = {};  ///< PEFT folder: adapter_config.json and adapter_model.safetensors.
  double scale = 1.0;     ///< Multiplies the adapter's own alpha / r.
};

struct ModelOptions {
  std::string name = {};  ///< Unique; requests choose by it.
  std::string path = {};  ///< Hugging Face folder or packed .duet file. The same base named twice is held once.
  /// Loaded at open; the first one is the default of requests that name none. No adapter may be called "none".
  std::vector<AdapterOptions> adapters = {};
  WeightOptions weights = {};
  /// Empty: the checkpoint's own. Or a family's name: "chatml", "llama3", ...
  std::string chat_template = {};
  std::string system = {};  ///< Put in front of messages that hold no system message of their own; empty: nothing.
  int adapter_slots = 0;    ///< Room for adapters at one time; 0: as many as `adapters`. More may be loaded later.
  /// Keeps the embedding in the host's memory, where a card reads one row a token; not with a tied head.
  bool embedding_on_host = false;
  int adapter_rank = 0;  ///< Room a slot keeps: rank on all projections; 0: what the largest of `adapters` needs.
};

/// Told how far loading has come. Called one call at a time, from the thread that opens or from threads it started.
class DUET_API LoadSink {
 public:
  virtual ~LoadSink() = default;
  /// Bytes in memory over all bases together; `model` is the first model that uses the base now loading.
  virtual void on_load(std::string_view model, std::uint64_t bytes_done, std::uint64_t bytes_total) = 0;
};

struct Options {
  std::vector<ModelOptions> models = {};
  Device device = Device::automatic;
  std::uint64_t budget = std::uint64_t{6} << 30;  ///< Everything, on a GPU the context included.
  /// KV tokens each model could hold if it had the pool alone; 0: 4,096 (less where a model allows less).
  std::int64_t kv_tokens = 0;
  KvPolicy kv_policy = KvPolicy::keep;
  KvType kv_type = KvType::automatic;  ///< How keys and values are held; the host holds f32 only, a card the others.
  int max_sequences = 8;               ///< Requests in progress at one time, of all models.
  int threads = 0;                     ///< Host backend; 0: all cores.
  int max_passed_over = 8;             ///< A waiting request is passed over at most this many times.
  int prefill_chunk_tokens = 256;
  LoadSink* load_sink = nullptr;  ///< May be null; used during Engine::open only.
};

struct Message {
  std::string role = {};  ///< "system", "user", "assistant".
  std::string content = {};
};

/// For tokens only: a head may have more rows than the tokenizer has tokens. Those are never generated nor listed, and
/// a bias on one is refused.
struct LogitBias {
  std::int32_t id = 0;
  float bias = 0;
};

/// Order of application: logit bias, repetition penalty, temperature, top-k, top-p, min-p (transformers' order).
struct Sampling {
  double temperature = 0;         ///< 0 (or below 1e-5): arg-max, ties to the lowest id.
  int top_k = 0;                  ///< 0: off.
  double top_p = 1;               ///< In [0, 1]; 0 keeps one token.
  double min_p = 0;               ///< In [0, 1].
  double repetition_penalty = 1;  ///< Above 0; over prompt and answer, as transformers does.
  std::vector<LogitBias> logit_bias = {};
  std::uint64_t seed = 0;  ///< The same seed and request give the same answer, whatever runs beside it.
};

/// Text comes as one of
///   messages    through the chat template: exactly one start token, and nothing typed in a message becomes a control
///               token;
///   prompt      raw text: special tokens spelt in it are parsed, and what the tokenizer puts before a text is added;
///   prompt_ids  taken as they are.
/// None of them is an empty prompt: the start token alone where the tokenizer adds one, else an error. A text of more
/// than 16 MiB, a chat's as its template renders it, is refused (no_room) before it is tokenized.
struct Request {
  std::string model = {};
  std::string adapter = {};    ///< Empty: the model's default. "none": the base alone.
  double adapter_scale = 1.0;  ///< Multiplies the scale given when the adapter was loaded.
  std::vector<Message> messages = {};
  std::string prompt = {};
  std::vector<std::int32_t> prompt_ids = {};
  Sampling sampling = {};
  int max_tokens = 256;
  /// The answer ends before the match that is complete first as the text is generated; of several complete at the same
  /// byte, before the longest. None may be empty.
  std::vector<std::string> stop = {};
  bool ignore_end_tokens = false;  ///< For benchmarks: only `max_tokens` and `stop` end the answer.
  int max_length_tokens = 1024;    ///< Longest prompt taken; see `length_policy`.
  LengthPolicy length_policy = LengthPolicy::reject;
  int logprobs = 0;     ///< N best per generated token, 0 to 20.
  int priority = 0;     ///< Higher first; equal ones in order of arrival.
  double deadline = 0;  ///< Seconds from submission; 0: none.
};

struct TokenLogprob {
  std::int32_t id = 0;
  float logprob = 0;  ///< Natural logarithm; log-softmax of the raw logits, before penalties and temperature.
};

struct GeneratedToken {
  std::int32_t id = 0;
  float logprob = 0;                    ///< Of the chosen token.
  std::vector<TokenLogprob> best = {};  ///< `Request::logprobs` of them, best first.
};

struct Timings {  ///< Seconds.
  double queued = 0;
  double prefill = 0;
  double first_token = 0;  ///< From submission.
  double decode = 0;
  double total = 0;
};

/// What was cut from a prompt over the limit (LengthPolicy::truncate), or how it was split (segment).
struct Cut {
  int removed_tokens = 0;
  int first_removed = 0;  ///< Position of the first removed token in the full prompt.
  int segments = 1;
};

struct Answer {
  Code code = Code::ok;
  std::string message = {};  ///< Empty when `code` is ok.
  std::string model = {};
  std::string adapter = {};  ///< "none" when the base answered.
  std::string text = {};
  Finish finish = Finish::none;
  std::int32_t stop_id = -1;  ///< The end token that stopped it, or -1.
  std::vector<std::int32_t> prompt_ids = {};
  std::vector<GeneratedToken> tokens = {};  ///< An ending end token is included here, never in `text`.
  int cached_tokens = 0;                    ///< Prompt tokens whose KV pages were already there.
  Cut cut = {};
  Timings timings = {};
};

/// Receives text while it is generated. Called on the engine's worker thread: return quickly, do not call the engine.
class DUET_API TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void on_text(std::string_view text) = 0;  ///< Whole characters only.
};

using Ticket = std::uint64_t;

struct Counters {
  std::uint64_t requests = 0, finished = 0, failed = 0, cancelled = 0;
  std::uint64_t switches = 0;  ///< Steps whose model differs from the step before.
  std::uint64_t steps = 0;
  std::uint64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  std::uint64_t evicted_pages = 0, recomputed_tokens = 0;
  /// free_pages: held by no sequence in progress; cached_pages of them keep a prefix that a later request may reuse.
  std::int64_t total_pages = 0, free_pages = 0, cached_pages = 0;
  int active_sequences = 0, waiting = 0;
  int most_passed_over = 0;  ///< Highest number of times any request was passed over.
  /// Time the device stood still between the last step of one model and the first of another that was waiting: all of
  /// it, and the median and 99th percentile of the last 1,024 switches.
  double switch_seconds = 0, switch_p50 = 0, switch_p99 = 0;
};

/// The fast model answers first; the deep one takes over when confidence is below the threshold, the answer holds a
/// hedge word, or is longer than the limit. Confidence is a named measure of the fast model's answer, in [0, 1]:
///   "mean"   exp of the mean log-probability of the generated tokens (an end token included);
///   "min"    the smallest probability of any of them;
///   "first"  the first token's.
/// Hedge words: ASCII in either case and as whole words; other scripts anywhere.
struct RouteRules {
  std::string fast = "laya";
  std::string deep = "kev";
  std::string confidence = "mean";
  double threshold = 0.7;  ///< Below it the deep model takes over.
  int fast_max_tokens = 64;
  int deep_max_tokens = 512;
  int longest_fast_answer_tokens = 0;  ///< An answer longer than this escalates; 0: off.
  std::vector<std::string> hedge_words = default_hedge_words();

  DUET_API static std::vector<std::string> default_hedge_words();
};

/// Reads rules from a JSON file; keys are the field names of RouteRules, unknown keys are refused.
DUET_API RouteRules read_route_rules(const std::string& path);

struct RoutedAnswer {
  Answer answer = {};  ///< The one that counts.
  Answer fast = {};    ///< What the fast model said.
  bool escalated = false;
  double confidence = 0;  ///< Of the fast answer, by `RouteRules::confidence`.
  /// "confidence 0.41 is below 0.70", "answer holds the hedge word \"maybe\"", "confidence 0.93", ...
  std::string reason = {};
};

class DUET_API Engine {
 public:
  /// Plans, refuses what does not fit, loads. Throws Error.
  static Engine open(const Options& options);
  /// The plan as a table for people, computed from configs and file headers alone; nothing is loaded. Throws Error when
  /// it does not fit.
  static std::string plan(const Options& options);

  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  ~Engine();  ///< Cancels what is in progress and joins the worker.

  /// Never throws for a bad request: the answer says what was wrong. `sink` may be null and must outlive the request.
  Ticket submit(const Request& request, TokenSink* sink = nullptr);
  Answer wait(Ticket ticket);  ///< Blocks; each ticket is waited for once.
  bool cancel(Ticket ticket);  ///< Takes effect within one step; false when it had already ended.
  void cancel_all();           ///< Every request submitted so far, those inside `run` and `route` too.
  Answer run(const Request& request, TokenSink* sink = nullptr);  ///< submit and wait.

  /// `request.model`, `adapter` and `max_tokens` are set from the rules; a deadline covers both models together. The
  /// sink gets the text of the answer that counts only: the fast one's in one piece once it is known to stand.
  /// A fast model that fails on its own account (non-finite numbers, no room) escalates too; a bad request, a
  /// cancelled or late one does not. Rules that make no sense give an answer with Code::invalid_argument.
  RoutedAnswer route(const Request& request, const RouteRules& rules, TokenSink* sink = nullptr);

  /// Typed questions (duet/decide.h), all of a request as one batch. Blocks; never throws for a bad request. The first
  /// form asks `request.model`; with rules the fast model answers every question and the deep one those it is not sure
  /// of. A question that the deep model cannot answer keeps the fast one's answer and says why.
  Decision decide(const DecisionRequest& request);
  Decision decide(const DecisionRequest& request, const DecisionRules& rules);

  /// Loads and drops adapters while running; other requests carry on. Throws Error: no_room when no slot is free or
  /// it is too large for one (ModelOptions::adapter_slots, adapter_rank), invalid_argument when the name is taken or
  /// still in use.
  void load_adapter(const std::string& model, const AdapterOptions& adapter);
  void drop_adapter(const std::string& model, const std::string& adapter);

  /// The text's own ids: nothing is added in front or behind. Throws Error.
  std::vector<std::int32_t> tokenize(const std::string& model, std::string_view text, bool parse_special) const;
  /// Special tokens are spelt out. Throws Error.
  std::string detokenize(const std::string& model, const std::vector<std::int32_t>& ids) const;

  Counters counters() const;
  std::string plan_table() const;   ///< The plan this engine runs on.
  std::string load_report() const;  ///< What was loaded, defaults taken, tensors unused.
  std::string device_name() const;  ///< "host (2 threads, AVX3)"; after an automatic choice also why no card.
  /// How most of the model's matrices are held; never as_stored or automatic. Throws Error.
  WeightType weight_type(const std::string& model) const;

 private:
  class Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace duet
