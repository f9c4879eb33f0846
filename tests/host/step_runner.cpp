#include "tests/host/step_runner.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "tests/host/device_under_test.h"

namespace duet::test {

StepRunner::StepRunner(const WeightSource& source, const RunnerOptions& options)
    : StepRunner(std::vector<const WeightSource*>{&source}, options) {}

StepRunner::StepRunner(const std::vector<const WeightSource*>& sources, const RunnerOptions& options) {
  PlanRequest request;
  for (const WeightSource* source : sources) {
    PlanModel model;
    model.name = "model " + std::to_string(request.models.size());
    model.base_identity = source->identity();
    model.base_path = source->name();
    model.spec = source->spec();
    model.tensors = source->tensors();
    model.adapter_slots = options.adapter_slots;
    model.adapter_slot_bytes = options.adapter_slot_bytes;
    model.largest_adapter_rank = options.adapter_rank;
    model.embedding_on_host = options.embedding_on_host;
    request.models.push_back(model);
  }
  request.backend = device_under_test().facts;
  request.backend.kv_storage = options.kv_storage.value_or(request.backend.kv_storage);
  request.budget = std::uint64_t{2} << 30;
  request.kv_tokens = options.kv_tokens;
  request.max_sequences = options.max_sequences;
  request.prefill_chunk_tokens = options.chunk_tokens;
  plan = make_plan(request);
  backend = device_under_test().make(plan, options.threads);
  for (std::size_t i = 0; i < sources.size(); ++i) backend->load_weights(static_cast<int>(i), *sources[i], nullptr);
  backend->start();
}

std::vector<std::int32_t> StepRunner::pages(std::int32_t first, std::int64_t tokens, int model) const {
  const std::int64_t per_page = plan.models[static_cast<std::size_t>(model)].tokens_per_page;
  std::vector<std::int32_t> ids(static_cast<std::size_t>((tokens + per_page - 1) / per_page));
  std::iota(ids.rbegin(), ids.rend(), first);
  return ids;
}

int StepRunner::state_slot(int slot, int model) const {
  return plan.models[static_cast<std::size_t>(model)].state_slots.empty() ? -1 : slot;
}

std::vector<float> StepRunner::logits(std::span<const std::int32_t> tokens, int chunk, int adapter_slot,
                                      float adapter_scale, std::int32_t first_page, int model, int slot) {
  const std::vector<std::int32_t> ids = pages(first_page, static_cast<std::int64_t>(tokens.size()), model);
  const auto base = static_cast<std::size_t>(plan.models[static_cast<std::size_t>(model)].base);
  const auto width = static_cast<std::size_t>(plan.bases[base].spec.vocabulary);
  std::vector<float> result(tokens.size() * width);
  for (std::size_t done = 0; done < tokens.size();) {
    const std::size_t count = std::min(static_cast<std::size_t>(chunk), tokens.size() - done);
    StepSequence sequence;
    sequence.tokens = tokens.subspan(done, count);
    sequence.first_position = static_cast<std::int64_t>(done);
    sequence.pages = ids;
    sequence.state_slot = state_slot(slot, model);
    sequence.adapter_slot = adapter_slot;
    sequence.adapter_scale = adapter_scale;
    sequence.logits = result.data() + done * width;
    backend->prefill(model, sequence);
    done += count;
  }
  return result;
}

std::vector<std::int32_t> StepRunner::greedy(std::span<const std::int32_t> prompt, std::size_t count,
                                             int adapter_slot) {
  const std::vector<std::int32_t> ids = pages(0, static_cast<std::int64_t>(prompt.size() + count));
  const Sampling arg_max;
  std::vector<std::int32_t> tokens(prompt.begin(), prompt.end());
  const auto chunk = static_cast<std::size_t>(plan.limits.prefill_chunk_tokens);
  for (std::size_t done = 0; tokens.size() < prompt.size() + count;) {
    StepSequence sequence;
    sequence.tokens = std::span(tokens).subspan(done, std::min(chunk, tokens.size() - done));
    sequence.first_position = static_cast<std::int64_t>(done);
    sequence.pages = ids;
    sequence.state_slot = state_slot(0);
    sequence.adapter_slot = adapter_slot;
    sequence.sample = done + sequence.tokens.size() == tokens.size();
    sequence.rules.usable_vocabulary = plan.bases[0].spec.vocabulary;
    sequence.rules.sampling = &arg_max;
    done += sequence.tokens.size();
    StepOutcome outcome;
    if (sequence.tokens.size() == 1) {
      backend->decode(0, {&sequence, 1}, {&outcome, 1});
    } else {
      outcome = backend->prefill(0, sequence);
    }
    if (!outcome.finite) throw std::runtime_error("a step was not finite");
    if (sequence.sample) tokens.push_back(outcome.sampled.id);
  }
  return {tokens.begin() + static_cast<std::ptrdiff_t>(prompt.size()), tokens.end()};
}

}  // namespace duet::test
