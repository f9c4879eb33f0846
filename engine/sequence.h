#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "duet/engine.h"
#include "engine/backend.h"
#include "engine/request.h"
#include "engine/stop_strings.h"
#include "engine/text_stream.h"

namespace duet {

/// The adapter of a request, fixed when it was submitted.
struct AdapterChoice {
  int slot = -1;  ///< -1: the base alone.
  std::string name = "none";
  std::string content_hash;
  float scale = 1.0F;  ///< Load-time scale times the request's.
};

/// Tokens [begin, end) of the prompt, run as a prompt of its own.
struct PromptPiece {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// One request from submission to answer: what was asked, how far it has come, what it holds. Owned by the worker.
struct Sequence {
  Ticket ticket = 0;
  TokenRequest request;
  AdapterChoice adapter;
  TokenSink* sink = nullptr;
  std::vector<PromptPiece> pieces;  ///< More than one with LengthPolicy::segment only.
  std::uint64_t arrival = 0;
  double submitted = 0;  ///< Seconds on the worker's clock, as all times here.
  double deadline = 0;   ///< 0: none.

  // The piece that runs.
  std::size_t piece = 0;
  std::vector<std::int32_t> tokens;  ///< Prompt piece and its answer so far.
  int prompt_tokens = 0;             ///< Of them, the prompt's.
  std::int64_t computed_tokens = 0;  ///< Of them, those in the pages.
  std::optional<TextStream> text;    ///< Empty without a tokenizer.
  std::optional<StopStrings> stops;

  // What it holds.
  bool in_progress = false;
  int identity = -1;                  ///< In the prefix cache; -1: not started yet.
  std::vector<std::int32_t> pages;    ///< Page i holds tokens [i * tokens_per_page, ...).
  std::int64_t remembered_pages = 0;  ///< The first so many are known to the prefix cache.
  int state_slot = -1;                ///< Of a hybrid in progress.

  // What it went through.
  int passed_over = 0;
  bool preempted = false;        ///< Its pages were taken away while this piece ran.
  std::int64_t lost_tokens = 0;  ///< Tokens in the pages then.
  int steps = 0;
  double started = -1, first_token = -1;              ///< Below 0: not yet.
  std::string released;                               ///< Scratch of `accept`.
  std::vector<std::vector<TokenLogprob>> best_lists;  ///< Room for those of the tokens to come, where they are wanted.
  Answer answer;

  int generated() const { return static_cast<int>(tokens.size()) - prompt_tokens; }
  /// The next step reads more than the newest token of the answer.
  bool needs_prefill() const {
    return generated() == 0 || static_cast<std::int64_t>(tokens.size()) - computed_tokens > 1;
  }
};

/// How the prompt is run under the request's limits; fills `cut` and, with truncate, shortens request.prompt_ids.
/// `max_context_tokens` is the model's longest sequence. Throws Error(no_room) when it cannot fit.
std::vector<PromptPiece> cut_prompt(TokenRequest& request, const std::string& model, std::int64_t max_context_tokens,
                                    Cut& cut);

/// Makes piece `piece` the one that runs, from its first token.
void begin_piece(Sequence& sequence, std::size_t piece, const Tokenizer* tokenizer);

/// Takes the next token in, and gives the sink what text became certain. Returns true when the piece has ended
/// (answer.finish says why). Throws what the sink throws.
bool accept(Sequence& sequence, const SampleResult& sampled, const std::vector<std::int32_t>& end_ids);

/// Lets out text that was held back: the answer ends here whatever it might have become. Returns true when its last
/// bytes, which only now became text, completed a stop string: the text ends before it. Throws what the sink throws.
bool release_text(Sequence& sequence);

/// Text the engine puts between two pieces' answers.
void join_pieces(Sequence& sequence);

}  // namespace duet
