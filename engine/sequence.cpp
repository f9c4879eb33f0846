// One request: its prompt cut to length, its answer put together token by token.
#include "engine/sequence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>

#include "duet/error.h"

namespace duet {

namespace {

/// Gives `sequence.released` to the answer and the sink, and empties it.
void emit(Sequence& sequence) {
  std::string& text = sequence.answer.text;
  const std::size_t before = text.size();
  text += sequence.released;
  sequence.released.clear();
  if (sequence.sink != nullptr && text.size() > before) sequence.sink->on_text(std::string_view(text).substr(before));
}

[[noreturn]] void refuse_length(const TokenRequest& request, std::int64_t prompt, const std::string& model,
                                std::int64_t max_context_tokens) {
  const std::int64_t room = max_context_tokens - request.max_tokens;
  const std::int64_t answer_room = max_context_tokens - prompt;
  std::string fix = answer_room > 0 ? fmt::format("Lower max_tokens to {}", answer_room) : "Shorten the prompt";
  if (answer_room > 0 && room > 0) fix += fmt::format(", or the prompt to {} tokens", room);
  throw Error(Code::no_room,
              fmt::format("The prompt has {} tokens and the answer may take {}, together {}; the longest sequence of "
                          "model \"{}\" is {} tokens",
                          prompt, request.max_tokens, prompt + request.max_tokens, model, max_context_tokens),
              std::move(fix));
}

}  // namespace

std::vector<PromptPiece> cut_prompt(TokenRequest& request, const std::string& model, std::int64_t max_context_tokens,
                                    Cut& cut) {
  const auto prompt = static_cast<std::int64_t>(request.prompt_ids.size());
  const std::int64_t room = max_context_tokens - request.max_tokens;
  if (request.length_policy == LengthPolicy::reject && prompt > request.max_length_tokens)
    throw Error(Code::no_room,
                fmt::format("The prompt has {} tokens and max_length_tokens is {}", prompt, request.max_length_tokens),
                "Raise max_length_tokens, shorten the prompt, or ask for truncate or segment");
  if (room < 1 || (request.length_policy == LengthPolicy::reject && prompt > room))
    refuse_length(request, prompt, model, max_context_tokens);

  const std::int64_t limit = std::min<std::int64_t>(request.max_length_tokens, room);
  if (prompt <= limit) return {{.begin = 0, .end = request.prompt_ids.size()}};
  if (request.length_policy == LengthPolicy::truncate) {
    const std::int64_t head = limit / 4;
    cut.first_removed = static_cast<int>(head);
    cut.removed_tokens = static_cast<int>(prompt - limit);
    const auto first = request.prompt_ids.begin() + head;
    request.prompt_ids.erase(first, first + cut.removed_tokens);
    return {{.begin = 0, .end = request.prompt_ids.size()}};
  }
  std::vector<PromptPiece> pieces;
  const auto size = static_cast<std::size_t>(limit);
  for (std::size_t begin = 0; begin < request.prompt_ids.size(); begin += size)
    pieces.push_back({.begin = begin, .end = std::min(begin + size, request.prompt_ids.size())});
  cut.segments = static_cast<int>(pieces.size());
  return pieces;
}

void begin_piece(Sequence& sequence, std::size_t piece, const Tokenizer* tokenizer) {
  assert(sequence.pages.empty());
  const TokenRequest& request = sequence.request;
  const PromptPiece part = sequence.pieces[piece];
  sequence.piece = piece;
  sequence.tokens.reserve(part.end - part.begin + static_cast<std::size_t>(request.max_tokens));
  sequence.tokens.assign(request.prompt_ids.begin() + static_cast<std::ptrdiff_t>(part.begin),
                         request.prompt_ids.begin() + static_cast<std::ptrdiff_t>(part.end));
  sequence.prompt_tokens = static_cast<int>(sequence.tokens.size());
  sequence.computed_tokens = 0;
  sequence.remembered_pages = 0;
  sequence.lost_tokens = 0;
  sequence.preempted = false;
  if (tokenizer != nullptr) sequence.text.emplace(*tokenizer);
  sequence.stops.emplace(request.stop);
  sequence.best_lists.resize(request.logprobs > 0 ? static_cast<std::size_t>(request.max_tokens) : 0);
  for (std::vector<TokenLogprob>& list : sequence.best_lists) list.reserve(static_cast<std::size_t>(request.logprobs));
}

bool accept(Sequence& sequence, const SampleResult& sampled, const std::vector<std::int32_t>& end_ids) {
  Answer& answer = sequence.answer;
  GeneratedToken token{.id = sampled.id, .logprob = sampled.logprob, .best = {}};
  if (sampled.best_count > 0) {
    if (!sequence.best_lists.empty()) {
      token.best = std::move(sequence.best_lists.back());
      sequence.best_lists.pop_back();
    }
    token.best.assign(sampled.best.begin(), sampled.best.begin() + sampled.best_count);
  }
  answer.tokens.push_back(std::move(token));
  sequence.tokens.push_back(sampled.id);

  const TokenRequest& request = sequence.request;
  if (!request.ignore_end_tokens && std::find(end_ids.begin(), end_ids.end(), sampled.id) != end_ids.end()) {
    answer.finish = Finish::stop_token;
    answer.stop_id = sampled.id;
    release_text(sequence);
    return true;
  }
  if (sequence.text && sequence.stops->push(sequence.text->push(sampled.id), sequence.released)) {
    answer.finish = Finish::stop_string;
    emit(sequence);
    return true;
  }
  if (sequence.generated() >= request.max_tokens) {
    answer.finish = release_text(sequence) ? Finish::stop_string : Finish::length;
    return true;
  }
  emit(sequence);
  return false;
}

bool release_text(Sequence& sequence) {
  if (!sequence.text) return false;
  const bool stopped = sequence.stops->push(sequence.text->finish(), sequence.released);
  if (!stopped) sequence.stops->finish(sequence.released);
  emit(sequence);
  return stopped;
}

void join_pieces(Sequence& sequence) {
  if (!sequence.text) return;
  sequence.released += '\n';
  emit(sequence);
}

}  // namespace duet
