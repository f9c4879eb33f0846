// What a step computes.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "duet/error.h"
#include "engine/worker.h"

namespace duet {

namespace {

std::string place_of(int layer, const ModelSpec& spec) {
  if (layer == kLayerEmbedding) return "the embedding";
  if (layer >= spec.all_layers()) return "the final norm and head";
  if (layer >= spec.layers) return fmt::format("layer {} of the decision head", layer - spec.layers);
  return fmt::format("layer {}", layer);
}

}  // namespace

/// One chunk of a prompt or one decode step. Where both wait they alternate, so that neither holds the other up for
/// longer than a step.
void Worker::step_model(int model) {
  batch_.clear();
  Sequence* to_prefill = nullptr;
  for (Sequence* sequence : running_) {
    if (sequence->request.model != model) continue;
    if (!sequence->needs_prefill())
      batch_.push_back(sequence);
    else if (to_prefill == nullptr)
      to_prefill = sequence;
  }
  ++counters_.steps;
  last_was_prefill_ = to_prefill != nullptr && (batch_.empty() || !last_was_prefill_);
  if (last_was_prefill_ && to_prefill->request.batch != nullptr)
    encode(*to_prefill);
  else if (last_was_prefill_)
    prefill(*to_prefill);
  else
    decode();
}

/// Rows that the request reads among the next `count` tokens.
void Worker::add_readout(Sequence& sequence, std::int64_t count, StepSequence& step) {
  HiddenRows& readout = *sequence.request.readout;
  const auto hidden =
      static_cast<std::size_t>(plan_.bases[static_cast<std::size_t>(planned(sequence).base)].spec.hidden);
  const std::int64_t first = sequence.computed_tokens;
  readout.rows.resize(readout.positions.size() * hidden);
  const auto begin = std::lower_bound(readout.positions.begin(), readout.positions.end(), first);
  hidden_rows_.clear();
  for (auto position = begin; position != readout.positions.end() && *position < first + count; ++position)
    hidden_rows_.push_back(static_cast<int>(*position - first));
  step.sample = false;
  step.hidden_rows = hidden_rows_;
  step.hidden = readout.rows.data() + static_cast<std::size_t>(begin - readout.positions.begin()) * hidden;
}

StepSequence Worker::step_of(Sequence& sequence, std::int64_t count) {
  const RuntimeModel& model = models_[static_cast<std::size_t>(sequence.request.model)];
  const auto first = static_cast<std::size_t>(sequence.computed_tokens);
  StepSequence step;
  step.tokens = std::span(sequence.tokens).subspan(first, static_cast<std::size_t>(count));
  step.first_position = sequence.computed_tokens;
  step.pages = sequence.pages;
  step.state_slot = sequence.state_slot;
  step.adapter_slot = sequence.adapter.slot;
  step.adapter_scale = sequence.adapter.scale;
  step.sample = first + static_cast<std::size_t>(count) == sequence.tokens.size();
  step.rules = {.usable_vocabulary = model.usable_vocabulary,
                .sampling = &sequence.request.sampling,
                .history = sequence.tokens,
                .draw = static_cast<std::uint64_t>(sequence.generated()),
                .logprobs = sequence.request.logprobs};
  if (sequence.request.readout != nullptr) add_readout(sequence, count, step);
  return step;
}

void Worker::prefill(Sequence& sequence) {
  const std::int64_t count = std::min<std::int64_t>(
      static_cast<std::int64_t>(sequence.tokens.size()) - sequence.computed_tokens, plan_.limits.prefill_chunk_tokens);
  const double began = now();
  StepOutcome outcome;
  try {
    outcome = backend_.prefill(sequence.request.model, step_of(sequence, count));
  } catch (...) {
    fail_by_exception(sequence);
    return;
  }
  sequence.answer.timings.prefill += now() - began;
  take_outcome(sequence, count, outcome);
}

/// All rows of a request to an encoder: one step, then it has ended.
void Worker::encode(Sequence& sequence) {
  const ModelSpec& spec = plan_.bases[static_cast<std::size_t>(planned(sequence).base)].spec;
  std::vector<EncoderRow> rows;
  for (EncodedRow& row : *sequence.request.batch) {
    row.option_logits.resize(row.markers.size());
    row.act_logits.resize(static_cast<std::size_t>(spec.act_outputs));
    rows.push_back({.tokens = row.ids,
                    .markers = row.markers,
                    .question_kind = row.question_kind,
                    .option_logits = row.option_logits.data(),
                    .act_logits = row.act_logits.data()});
    counters_.prompt_tokens += row.ids.size();
  }
  std::vector<StepOutcome> outcomes(rows.size());
  const double began = now();
  try {
    backend_.encode(sequence.request.model, rows, outcomes);
  } catch (...) {
    fail_by_exception(sequence);
    return;
  }
  ++sequence.steps;
  sequence.answer.timings.prefill += now() - began;
  for (const StepOutcome& outcome : outcomes) {
    if (outcome.finite) continue;
    fail(sequence, Code::non_finite, Finish::error,
         fmt::format("Model \"{}\" gave NaN or infinity, first in {}. Check the weights of that layer.",
                     planned(sequence).name, place_of(outcome.bad_layer, spec)));
    return;
  }
  end(sequence);
}

/// One new token for each sequence of batch_.
void Worker::decode() {
  // From the most important down: what `grow` preempts is never in front of the sequence it grows.
  for (Sequence* sequence : batch_)
    if (sequence->in_progress) grow(*sequence, static_cast<std::int64_t>(sequence->tokens.size()));
  batch_.erase(std::remove_if(batch_.begin(), batch_.end(), [](const Sequence* s) { return !s->in_progress; }),
               batch_.end());
  if (batch_.empty()) return;

  batch_steps_.clear();
  for (Sequence* sequence : batch_) batch_steps_.push_back(step_of(*sequence, 1));
  outcomes_.assign(batch_.size(), {});
  try {
    backend_.decode(last_model_, batch_steps_, outcomes_);
  } catch (...) {
    if (batch_.size() == 1)
      fail_by_exception(*batch_.front());
    else
      decode_one_by_one();
    return;
  }
  for (std::size_t i = 0; i < batch_.size(); ++i) take_outcome(*batch_[i], 1, outcomes_[i]);
}

/// After a batch that threw: only the sequences that throw alone fail. A step writes the same again, so nothing is
/// lost; a state that had already taken the token in refuses it.
void Worker::decode_one_by_one() {
  for (Sequence* sequence : batch_) {
    const StepSequence step = step_of(*sequence, 1);
    StepOutcome outcome;
    try {
      backend_.decode(last_model_, std::span(&step, 1), std::span(&outcome, 1));
    } catch (...) {
      fail_by_exception(*sequence);
      continue;
    }
    take_outcome(*sequence, 1, outcome);
  }
}

/// `count` tokens went through the model: keeps what they gave, or fails the request.
void Worker::take_outcome(Sequence& sequence, std::int64_t count, const StepOutcome& outcome) {
  ++sequence.steps;
  const int layers = plan_.bases[static_cast<std::size_t>(planned(sequence).base)].spec.layers;
  const bool last = sequence.computed_tokens + count == static_cast<std::int64_t>(sequence.tokens.size());
  const bool sampled = last && sequence.request.readout == nullptr;
  if (!outcome.finite || (sampled && !outcome.sampled.finite)) {
    fail_non_finite(sequence, count, outcome.finite ? layers : outcome.bad_layer);
    return;
  }
  sequence.computed_tokens += count;
  remember_full_pages(sequence);
  if (last && !sampled) return end(sequence);
  if (!sampled) return;

  const RuntimeModel& model = models_[static_cast<std::size_t>(sequence.request.model)];
  if (outcome.sampled.id < 0 || outcome.sampled.id >= model.usable_vocabulary) {
    fail(sequence, Code::internal, Finish::error,
         fmt::format("Backend {} chose token {} of a vocabulary of {}.", plan_.backend, outcome.sampled.id,
                     model.usable_vocabulary));
    return;
  }
  if (sequence.first_token < 0) {
    sequence.first_token = now();
    sequence.answer.timings.first_token = sequence.first_token - sequence.submitted;
  }
  ++counters_.generated_tokens;
  try {
    if (accept(sequence, outcome.sampled, model.end_ids)) finish_piece(sequence);
  } catch (...) {
    fail_by_exception(sequence);
  }
}

/// Ends the answer, or goes on with the next piece of the prompt.
void Worker::finish_piece(Sequence& sequence) {
  if (sequence.piece + 1 == sequence.pieces.size()) {
    end(sequence);
    return;
  }
  join_pieces(sequence);
  leave(sequence);
  sequence.answer.stop_id = -1;
  begin_piece(sequence, sequence.piece + 1, models_[static_cast<std::size_t>(sequence.request.model)].tokenizer.get());
  wait_in_queue(sequence);
}

void Worker::remember_full_pages(Sequence& sequence) {
  if (!reuses_prefixes(sequence)) return;
  const std::int64_t size = planned(sequence).tokens_per_page;
  for (; (sequence.remembered_pages + 1) * size <= sequence.computed_tokens; ++sequence.remembered_pages) {
    const auto index = static_cast<std::size_t>(sequence.remembered_pages);
    const std::int32_t parent = index == 0 ? -1 : sequence.pages[index - 1];
    const auto tokens =
        std::span(sequence.tokens).subspan(index * static_cast<std::size_t>(size), static_cast<std::size_t>(size));
    sequence.pages[index] = cache_.remember(sequence.identity, parent, tokens, sequence.pages[index]);
  }
}

/// Fails the request with the exception in flight.
void Worker::fail_by_exception(Sequence& sequence) {
  try {
    throw;
  } catch (const Error& error) {
    fail(sequence, error.code(), Finish::error, error.what());
  } catch (const std::exception& error) {
    fail(sequence, Code::internal, Finish::error,
         fmt::format("A step of model \"{}\" failed: {}", planned(sequence).name, error.what()));
  } catch (...) {
    fail(sequence, Code::internal, Finish::error,
         fmt::format("A step of model \"{}\" failed without a reason.", planned(sequence).name));
  }
}

void Worker::fail_non_finite(Sequence& sequence, std::int64_t count, int layer) {
  const ModelSpec& spec = plan_.bases[static_cast<std::size_t>(planned(sequence).base)].spec;
  const std::int64_t first = sequence.computed_tokens;
  const std::string tokens =
      count == 1 ? fmt::format("token {}", first) : fmt::format("tokens {} to {}", first, first + count - 1);
  fail(sequence, Code::non_finite, Finish::error,
       fmt::format("Model \"{}\" with adapter \"{}\" gave NaN or infinity, first in {}, at step {} of the request "
                   "({}, {} of the answer done). Check the adapter and the weights of that layer.",
                   planned(sequence).name, sequence.adapter.name, place_of(layer, spec), sequence.steps, tokens,
                   sequence.generated()));
}

}  // namespace duet
