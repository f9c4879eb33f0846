#include "tests/support/fake_backend.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <tuple>

namespace duet::test {

namespace {

std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 32)) * 0xD6E8FEB86659FD93U;
  value = (value ^ (value >> 32)) * 0xD6E8FEB86659FD93U;
  return value ^ (value >> 32);
}

std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 1469598103934665603U;
  for (const char byte : text) hash = mixed(hash ^ static_cast<unsigned char>(byte));
  return hash;
}

std::uint64_t seed_of(int base, const std::string& adapter_content, float scale) {
  const std::uint64_t adapter =
      adapter_content.empty() ? 0 : hash_of(adapter_content) ^ std::bit_cast<std::uint32_t>(scale);
  return mixed(mixed(static_cast<std::uint64_t>(base) + 7) ^ adapter);
}

/// The number a token leaves in its place, and the hash over all places with it.
std::uint64_t cell_of(std::uint64_t before, std::int32_t token, std::int64_t position) {
  return mixed(before ^ mixed(static_cast<std::uint64_t>(token) * 1000003U + static_cast<std::uint64_t>(position)));
}
std::uint64_t folded(std::uint64_t before, std::uint64_t cell) { return mixed(before * 31 + cell); }

float logit_of(std::uint64_t state, std::int32_t id) {
  if (id >= kFakeUsable) return 50.0F;
  return static_cast<float>(mixed(state + static_cast<std::uint64_t>(id)) >> 40) * 0x1p-21F - 4.0F;
}

void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

ModelSpec fake_spec(int kv_heads, int positions) {
  ModelSpec spec;
  spec.architecture = "FakeForCausalLM";
  spec.layers = 3;
  spec.hidden = 8;
  spec.query_heads = kv_heads;
  spec.kv_heads = kv_heads;
  spec.head_size = 8;
  spec.mlp = 16;
  spec.vocabulary = kFakeVocabulary;
  spec.max_position_tokens = positions;
  return spec;
}

}  // namespace

FakeBackend::FakeBackend(const Plan& plan)
    : plan_(plan),
      most_tokens_per_page_(0),
      logits_(kFakeVocabulary),
      scratch_(sample_scratch_floats(kFakeVocabulary)) {
  for (const PlannedModel& model : plan.models) {
    most_tokens_per_page_ = std::max(most_tokens_per_page_, model.tokens_per_page);
    adapters_.emplace_back(model.adapter_slots.size());
  }
  cells_.assign(static_cast<std::size_t>(plan.page_count * most_tokens_per_page_), 0xDEADDEADDEADDEADU);
}

void FakeBackend::load_adapter(int model, int slot, const AdapterSource& source, float) {
  auto& entry = adapters_.at(static_cast<std::size_t>(model)).at(static_cast<std::size_t>(slot));
  require(!entry.has_value(), "an adapter was loaded into a slot in use");
  if (source.name() == "broken") throw std::runtime_error("the adapter's bytes cannot be read");
  entry = source.spec().content_hash;
}

void FakeBackend::drop_adapter(int model, int slot) {
  auto& entry = adapters_.at(static_cast<std::size_t>(model)).at(static_cast<std::size_t>(slot));
  require(entry.has_value(), "an empty slot was dropped");
  entry.reset();
}

std::uint64_t& FakeBackend::cell(int model, const StepSequence& sequence, std::int64_t position) {
  const std::int64_t size = plan_.models[static_cast<std::size_t>(model)].tokens_per_page;
  const std::int32_t page = sequence.pages[static_cast<std::size_t>(position / size)];
  require(page >= 0 && page < plan_.page_count, "a page id is outside the pool");
  return cells_[static_cast<std::size_t>(page * most_tokens_per_page_ + position % size)];
}

StepOutcome FakeBackend::run(int model, const StepSequence& sequence) {
  const PlannedModel& planned = plan_.models.at(static_cast<std::size_t>(model));
  const auto count = static_cast<std::int64_t>(sequence.tokens.size());
  const std::int64_t end = sequence.first_position + count;
  require(count > 0, "a step has no tokens");
  require(end <= static_cast<std::int64_t>(sequence.pages.size()) * planned.tokens_per_page, "a step lacks pages");
  require(end <= planned.max_context_tokens, "a step leaves the context");
  require(!sequence.sample || end == static_cast<std::int64_t>(sequence.rules.history.size()),
          "the history is not the tokens so far");
  if (before_step) before_step(model, sequence);

  static const std::string kNone;
  const std::string* content = &kNone;
  if (sequence.adapter_slot >= 0) {
    const auto& entry =
        adapters_.at(static_cast<std::size_t>(model)).at(static_cast<std::size_t>(sequence.adapter_slot));
    require(entry.has_value(), "a step uses an empty adapter slot");
    content = &*entry;
  }
  std::uint64_t state = seed_of(planned.base, *content, sequence.adapter_scale);
  for (std::int64_t position = 0; position < sequence.first_position; ++position)
    state = folded(state, cell(model, sequence, position));
  for (std::int64_t i = 0; i < count; ++i) {
    std::uint64_t& place = cell(model, sequence, sequence.first_position + i);
    place = cell_of(state, sequence.tokens[static_cast<std::size_t>(i)], sequence.first_position + i);
    state = folded(state, place);
  }

  StepOutcome outcome;
  if (bad_layer)
    if (const auto layer = bad_layer(model, sequence)) {
      for (std::int64_t i = 0; i < count; ++i) cell(model, sequence, sequence.first_position + i) = 0xBADU;
      outcome.finite = false;
      outcome.bad_layer = *layer;
      return outcome;
    }
  if (!sequence.sample) return outcome;
  for (std::int32_t id = 0; id < kFakeVocabulary; ++id) logits_[static_cast<std::size_t>(id)] = logit_of(state, id);
  if (change_logits) change_logits(model, sequence, logits_);
  outcome.sampled = sample(logits_, sequence.rules, scratch_);
  if (script)
    if (const auto id = script(model, sequence)) outcome.sampled.id = *id;
  return outcome;
}

StepOutcome FakeBackend::prefill(int model, const StepSequence& sequence) {
  require(sequence.tokens.size() <= static_cast<std::size_t>(plan_.limits.prefill_chunk_tokens), "a chunk is too long");
  return run(model, sequence);
}

void FakeBackend::decode(int model, std::span<const StepSequence> sequences, std::span<StepOutcome> outcomes) {
  require(sequences.size() <= static_cast<std::size_t>(plan_.limits.max_batch_sequences), "a batch is too large");
  require(sequences.size() == outcomes.size() && !sequences.empty(), "a batch has no outcomes");
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    require(sequences[i].tokens.size() == 1, "a decode step has more than one token");
    for (std::size_t j = 0; j < i; ++j)
      require(sequences[i].pages.back() != sequences[j].pages.back(), "two sequences write to one page");
    outcomes[i] = run(model, sequences[i]);
  }
}

std::vector<std::int32_t> fake_answer(int base, const std::string& adapter_content, float scale,
                                      std::vector<std::int32_t> prompt, int max_tokens) {
  std::vector<std::int32_t> answer;
  std::uint64_t state = seed_of(base, adapter_content, scale);
  std::int64_t position = 0;
  const auto read = [&](std::int32_t token) { state = folded(state, cell_of(state, token, position++)); };
  for (const std::int32_t token : prompt) read(token);
  while (static_cast<int>(answer.size()) < max_tokens) {
    std::int32_t best = 0;
    for (std::int32_t id = 1; id < kFakeUsable; ++id)
      if (logit_of(state, id) > logit_of(state, best)) best = id;
    answer.push_back(best);
    read(best);
  }
  return answer;
}

FakeAdapter::FakeAdapter(std::string content, std::size_t bytes, int rank) {
  spec_.content_hash = std::move(content);
  spec_.bytes = bytes;
  spec_.largest_rank = rank;
}

Plan fake_plan(const FakeSetup& setup) {
  PlanRequest request;
  request.backend = {.name = "fake", .kv_storage = KvStorage::f32, .context_bytes = 0, .scratch_bytes = nullptr};
  request.budget = std::uint64_t{1} << 40;
  request.kv_tokens = setup.kv_tokens;
  request.max_sequences = setup.max_sequences;
  request.prefill_chunk_tokens = setup.prefill_chunk_tokens;
  for (const auto& [name, base, kv_heads] : {std::tuple("laya", "base of laya", 1), std::tuple("kev", "base of kev", 2),
                                             std::tuple("twin", "base of laya", 1)}) {
    PlanModel model;
    model.name = name;
    model.base_identity = base;
    model.base_path = base;
    model.spec = fake_spec(kv_heads, setup.positions);
    model.adapter_slots = setup.adapter_slots;
    model.adapter_slot_bytes = 1000;
    model.largest_adapter_rank = 8;
    request.models.push_back(std::move(model));
  }
  return make_plan(request);
}

std::shared_ptr<const Tokenizer> fake_tokenizer(const std::vector<std::pair<std::int32_t, std::string>>& texts) {
  TokenizerSpec spec;
  spec.name = "fake tokenizer";
  for (std::int32_t id = 0; id < kFakeUsable; ++id)
    spec.model.vocabulary.emplace_back(
        id < 26 ? std::string(1, static_cast<char>('a' + id)) : "<" + std::to_string(id) + ">", id);
  for (const auto& [id, text] : texts) spec.model.vocabulary[static_cast<std::size_t>(id)].first = text;
  spec.model.byte_fallback = true;
  spec.decoders.resize(2);
  spec.decoders[0].kind = DecoderStep::Kind::byte_fallback;
  spec.decoders[1].kind = DecoderStep::Kind::fuse;
  return std::make_shared<const Tokenizer>(std::move(spec));
}

std::vector<RuntimeModel> fake_models(const std::shared_ptr<const Tokenizer>& tokenizer,
                                      const std::vector<std::int32_t>& end_ids) {
  return std::vector<RuntimeModel>(
      3, {.tokenizer = tokenizer, .end_ids = end_ids, .usable_vocabulary = kFakeUsable, .default_adapter = ""});
}

std::vector<std::int32_t> fake_prompt(int count, std::uint64_t seed) {
  std::vector<std::int32_t> prompt;
  for (int i = 0; i < count; ++i)
    prompt.push_back(static_cast<std::int32_t>(mixed(seed * 1000 + static_cast<std::uint64_t>(i)) % kFakeUsable));
  return prompt;
}

}  // namespace duet::test
