// The arena's plan.
#include "engine/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <optional>
#include <set>
#include <utility>

#include "duet/error.h"

namespace duet {

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::int64_t kFewestTokensWorthASuggestion = 128;

/// "6,442,450,944 B (6.00 GiB)"
std::string exact_and_human(std::uint64_t bytes) {
  return fmt::format("{} B ({})", grouped_digits(bytes), human_bytes(bytes));
}

std::int64_t ceil_divide(std::int64_t value, std::int64_t by) {
  if (by < 1) throw Error(Code::internal, fmt::format("The plan divides {} by {}", value, by));
  return value / by + (value % by != 0 ? 1 : 0);
}

// ---- what a request must hold ----

void check_model(const PlanModel& model) {
  if (model.name.empty()) throw Error(Code::invalid_argument, "A model of the plan has no name", "Name every model");
  if (model.adapter_slots < 0)
    throw Error(Code::invalid_argument,
                fmt::format("Model \"{}\" asks for {} adapter slots", model.name, model.adapter_slots),
                "Ask for 0 or more");
  if (model.adapter_slots > 0 && model.adapter_slot_bytes == 0)
    throw Error(Code::invalid_argument,
                fmt::format("Model \"{}\" asks for {} adapter slots of no size", model.name, model.adapter_slots),
                "Give adapter_rank, or load an adapter at open");
  if (model.embedding_on_host && model.spec.tied_head)
    throw Error(Code::invalid_argument,
                fmt::format("Model \"{}\" cannot keep its embedding in host memory: its head is the same matrix, and "
                            "every token reads all of it",
                            model.name),
                "Leave the embedding on the device");
  if (model.spec.max_position_tokens < 1)
    throw Error(Code::invalid_argument, fmt::format("Model \"{}\" allows {} positions; a sequence needs at least 1",
                                                    model.name, model.spec.max_position_tokens));
}

void check_request(const PlanRequest& request) {
  if (request.models.empty()) throw Error(Code::invalid_argument, "The plan holds no model", "Name at least one model");
  if (request.kv_tokens < 0)
    throw Error(Code::invalid_argument,
                fmt::format("kv_tokens is {}; a pool holds at least one token", request.kv_tokens),
                "Leave it at 0 for the default");
  if (request.max_sequences < 1)
    throw Error(Code::invalid_argument, fmt::format("max_sequences is {}", request.max_sequences), "Give 1 or more");
  if (request.kept_states < 0)
    throw Error(Code::invalid_argument, fmt::format("kept_states is {}", request.kept_states), "Give 0 or more");
  if (request.prefill_chunk_tokens < 1)
    throw Error(Code::invalid_argument, fmt::format("prefill_chunk_tokens is {}", request.prefill_chunk_tokens),
                "Give 1 or more");
  std::set<std::string_view> names;
  for (const PlanModel& model : request.models) {
    check_model(model);
    if (model.spec.kind == ModelKind::encoder && !request.backend.encoders)
      throw Error(Code::unsupported,
                  fmt::format("Model \"{}\" is an encoder ({}), which the {} backend does not run yet", model.name,
                              model.spec.architecture, request.backend.name),
                  "Choose --device host");
    if (model.spec.is_hybrid() && !request.backend.hybrids)
      throw Error(
          Code::unsupported,
          fmt::format("Model \"{}\" is a hybrid of Gated DeltaNet and gated attention ({}), which the {} backend "
                      "does not run yet",
                      model.name, model.spec.architecture, request.backend.name),
          "Choose --device host");
    if (model.spec.kind == ModelKind::encoder && model.adapter_slots > 0)
      throw Error(Code::unsupported, fmt::format("Model \"{}\" is an encoder and was given an adapter", model.name),
                  "Encoders run without adapters");
    if (!names.insert(model.name).second)
      throw Error(Code::invalid_argument, fmt::format("Two models are called \"{}\"", model.name),
                  "Give each a name of its own");
  }
}

// ---- the plan, counted and placed by the same lines ----

bool same_tensors(const std::vector<WeightTensor>& a, const std::vector<WeightTensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const WeightTensor& x, const WeightTensor& y) {
    return x.row.name == y.row.name && x.bytes == y.bytes && x.storage == y.storage;
  });
}

/// Index of the base of `model`, carved when it is the first to name it.
int base_of(const PlanModel& model, Plan& plan, Carver& carver) {
  const auto found = std::find_if(plan.bases.begin(), plan.bases.end(),
                                  [&](const PlannedBase& base) { return base.identity == model.base_identity; });
  if (found != plan.bases.end()) {
    if (found->embedding_on_host != model.embedding_on_host)
      throw Error(
          Code::invalid_argument,
          fmt::format("Model \"{}\" shares base {} with another model, and only one of them keeps the embedding "
                      "in host memory",
                      model.name, model.base_path),
          "Choose the same for both");
    if (found->spec != model.spec || !same_tensors(found->tensors, model.tensors))
      throw Error(Code::internal, fmt::format("Model \"{}\" names base {} with a shape or storage other than before",
                                              model.name, model.base_path));
    return static_cast<int>(found - plan.bases.begin());
  }
  PlannedBase base{.identity = model.base_identity,
                   .path = model.base_path,
                   .spec = model.spec,
                   .tensors = model.tensors,
                   .regions = {},
                   .embedding_on_host = model.embedding_on_host};
  base.regions.reserve(model.tensors.size());
  for (const WeightTensor& tensor : model.tensors) {
    const bool on_host = model.embedding_on_host && tensor.row.part == Part::embedding;
    base.regions.push_back(carver.take(fmt::format("{}: {}", model.name, tensor.row.name), on_host ? 0 : tensor.bytes));
  }
  plan.bases.push_back(std::move(base));
  return static_cast<int>(plan.bases.size()) - 1;
}

std::int64_t checked_kv_bytes(const PlanModel& model, const BackendFacts& backend) {
  const std::int64_t bytes = kv_bytes_per_token(model.spec, backend.kv_storage);
  if (model.spec.kind == ModelKind::encoder) return bytes;
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / (2 * kFewestTokensPerPage);
  if (bytes < 1 || bytes > kMost)
    throw Error(
        Code::invalid_argument,
        fmt::format("One KV token of model \"{}\" would cost {} bytes; its config makes no sense", model.name, bytes));
  return bytes;
}

/// kv_tokens, or the default for this model.
std::int64_t wanted_tokens(const PlanModel& model, std::int64_t kv_tokens) {
  return kv_tokens > 0 ? kv_tokens : std::min<std::int64_t>(kDefaultKvTokens, model.spec.max_position_tokens);
}

/// Sizes pages and the pool, and what each model makes of it.
void size_pages(const PlanRequest& request, std::int64_t kv_tokens, Plan& plan) {
  std::int64_t page_bytes = 0;
  for (std::size_t i = 0; i < request.models.size(); ++i) {
    plan.models[i].kv_bytes_per_token = checked_kv_bytes(request.models[i], request.backend);
    page_bytes = std::max(page_bytes, plan.models[i].kv_bytes_per_token * kFewestTokensPerPage);
  }
  constexpr auto kAlignment = static_cast<std::int64_t>(kRegionAlignment);
  page_bytes = ceil_divide(page_bytes, kAlignment) * kAlignment;  // 0 without a decoder.
  plan.page_bytes = static_cast<std::size_t>(page_bytes);

  for (std::size_t i = 0; i < request.models.size(); ++i) {
    PlannedModel& model = plan.models[i];
    if (model.kv_bytes_per_token == 0) continue;
    assert(page_bytes / model.kv_bytes_per_token >= kFewestTokensPerPage);
    model.tokens_per_page = page_bytes / model.kv_bytes_per_token;
    plan.page_count =
        std::max(plan.page_count, ceil_divide(wanted_tokens(request.models[i], kv_tokens), model.tokens_per_page));
  }
  if (plan.page_count > std::numeric_limits<std::int32_t>::max() ||
      (page_bytes > 0 && plan.page_count > std::numeric_limits<std::int64_t>::max() / page_bytes))
    throw Error(
        Code::no_room,
        fmt::format("A pool of {} KV tokens would need {} pages of {} bytes", kv_tokens, plan.page_count, page_bytes),
        "Lower --kv-tokens");
  for (std::size_t i = 0; i < request.models.size(); ++i) {
    PlannedModel& model = plan.models[i];
    // Pages number below 2^31 and the pool's bytes below 2^63, so tokens (at least one byte each) do not overflow.
    const std::int64_t positions = request.models[i].spec.max_position_tokens;
    model.max_context_tokens =
        model.kv_bytes_per_token == 0 ? positions : std::min(positions, plan.page_count * model.tokens_per_page);
    plan.limits.max_context_tokens = std::max(plan.limits.max_context_tokens, model.max_context_tokens);
  }
}

void carve_state_slots(const PlanRequest& request, const PlanModel& model, Carver& carver, PlannedModel& planned) {
  const std::int64_t bytes = state_bytes(model.spec);
  if (bytes == 0) return;
  const std::int64_t slots = std::int64_t{request.max_sequences} + request.kept_states;
  for (std::int64_t slot = 0; slot < slots; ++slot)
    planned.state_slots.push_back(
        carver.take(fmt::format("{}: state slot {}", model.name, slot), static_cast<std::size_t>(bytes)));
}

/// The whole layout, whatever the budget.
Plan carve(const PlanRequest& request, std::int64_t kv_tokens) {
  Plan plan;
  plan.backend = request.backend.name;
  plan.budget = request.budget;
  plan.kv_storage = request.backend.kv_storage;
  plan.context_bytes = request.backend.context_bytes;
  plan.models.resize(request.models.size());
  size_pages(request, kv_tokens, plan);
  plan.limits.prefill_chunk_tokens =
      static_cast<int>(std::min<std::int64_t>(request.prefill_chunk_tokens, plan.limits.max_context_tokens));
  plan.limits.max_batch_sequences = request.max_sequences;
  for (const PlanModel& model : request.models)
    if (model.adapter_slots > 0)
      plan.limits.max_adapter_rank = std::max(plan.limits.max_adapter_rank, model.largest_adapter_rank);

  Carver carver;
  std::size_t scratch_bytes = 0;
  for (std::size_t i = 0; i < request.models.size(); ++i) {
    const PlanModel& model = request.models[i];
    plan.models[i].name = model.name;
    plan.models[i].base = base_of(model, plan, carver);
    for (int slot = 0; slot < model.adapter_slots; ++slot)
      plan.models[i].adapter_slots.push_back(
          carver.take(fmt::format("{}: adapter slot {}", model.name, slot), model.adapter_slot_bytes));
    if (request.backend.model_state_bytes != nullptr)
      plan.models[i].state =
          carver.take(fmt::format("{}: state", model.name),
                      request.backend.model_state_bytes(model.spec, plan.limits, model.adapter_slots));
    carve_state_slots(request, model, carver, plan.models[i]);
    if (request.backend.model_context_bytes != nullptr)
      plan.context_bytes += request.backend.model_context_bytes(model.spec, plan.limits);
    if (request.backend.scratch_bytes != nullptr)
      scratch_bytes = std::max(scratch_bytes, request.backend.scratch_bytes(model.spec, plan.limits));
  }
  plan.pages = carver.take("KV pages", plan.page_bytes * static_cast<std::size_t>(plan.page_count));
  plan.scratch = carver.take("scratch", scratch_bytes);
  plan.arena_bytes = carver.used();
  if (plan.arena_bytes > Carver::kUnlimited - plan.context_bytes)
    throw Error(Code::no_room, "The arena and the device context together overflow 64 bits");
  return plan;
}

// ---- refusing, with what would fit ----

/// True when the layout with `kv_tokens` is inside the budget.
bool fits(const PlanRequest& request, std::int64_t kv_tokens) {
  try {
    return carve(request, kv_tokens).total_bytes() <= request.budget;
  } catch (const Error& error) {
    if (error.code() == Code::no_room) return false;
    throw;
  }
}

/// The largest round number of KV tokens that fits, if any is worth having.
std::optional<std::int64_t> fitting_kv_tokens(const PlanRequest& request) {
  std::int64_t fitting = 0;
  std::int64_t too_many = request.kv_tokens > 0 ? request.kv_tokens : kDefaultKvTokens;
  while (too_many - fitting > 1) {
    const std::int64_t middle = fitting + (too_many - fitting) / 2;
    (fits(request, middle) ? fitting : too_many) = middle;
  }
  const std::int64_t step = fitting >= 512 ? 256 : 16;
  fitting = fitting / step * step;
  if (fitting < kFewestTokensWorthASuggestion) return std::nullopt;
  return fitting;
}

/// The sum with every 16/32-bit linear matrix held as NF4, when there is one and it fits.
std::optional<std::size_t> bytes_with_nf4(const PlanRequest& request) {
  PlanRequest smaller = request;
  bool changed = false;
  for (PlanModel& model : smaller.models)
    for (WeightTensor& tensor : model.tensors)
      if (tensor.row.role == TensorRole::linear && !is_quantised(tensor.storage.storage)) {
        tensor.storage = {.storage = Storage::nf4, .block_size = 64, .nested = false};
        tensor.bytes = layout_of(tensor.row.rows, tensor.row.columns, tensor.storage).bytes;
        changed = true;
      }
  if (!changed || !fits(smaller, smaller.kv_tokens)) return std::nullopt;
  return carve(smaller, smaller.kv_tokens).total_bytes();
}

[[noreturn]] void refuse(const PlanRequest& request, const Plan& plan) {
  std::size_t weights = 0;
  std::size_t adapters = 0;
  std::size_t states = 0;
  for (const PlannedBase& base : plan.bases)
    for (const Region& region : base.regions) weights += region.bytes;
  for (const PlannedModel& model : plan.models)
    for (const Region& region : model.adapter_slots) adapters += region.bytes;
  for (const PlannedModel& model : plan.models)
    for (const Region& region : model.state_slots) states += region.bytes;
  std::string what =
      fmt::format("The plan needs {} and the budget is {}: weights {}, adapter slots {}, KV pages {}, scratch {}",
                  exact_and_human(plan.total_bytes()), exact_and_human(request.budget), human_bytes(weights),
                  human_bytes(adapters), human_bytes(plan.pages.bytes), human_bytes(plan.scratch.bytes));
  if (states > 0) what += fmt::format(", recurrent states {}", human_bytes(states));
  if (plan.context_bytes > 0) what += fmt::format(", device context {}", human_bytes(plan.context_bytes));

  const std::uint64_t budget_mib = plan.total_bytes() / kMiB + (plan.total_bytes() % kMiB != 0 ? 1 : 0);
  std::string fix = fmt::format("would fit: --budget {}MiB", budget_mib);
  if (const auto tokens = fitting_kv_tokens(request)) fix += fmt::format("; or --kv-tokens {}", *tokens);
  if (const auto bytes = bytes_with_nf4(request))
    fix += fmt::format("; or linear weights held as nf4 ({} in all)", human_bytes(*bytes));
  fix[0] = 'W';
  throw Error(Code::no_room, std::move(what), std::move(fix));
}

}  // namespace

Carver::Carver(std::size_t limit, std::byte* base) : limit_(limit), base_(base) {
  if (std::bit_cast<std::uintptr_t>(base) % kRegionAlignment != 0)
    throw Error(Code::internal, fmt::format("The arena's base is not aligned to {} bytes", kRegionAlignment));
}

Region Carver::take(std::string_view name, std::size_t bytes) {
  const std::size_t offset = take_offset(name, bytes);
  return {.name = std::string(name), .offset = offset, .bytes = bytes};
}

std::size_t Carver::take_offset(std::string_view name, std::size_t bytes) {
  const std::size_t padding = (kRegionAlignment - used_ % kRegionAlignment) % kRegionAlignment;
  const std::size_t left = limit_ - used_;
  if (padding > left || bytes > left - padding)
    throw Error(Code::no_room, fmt::format("Region \"{}\" needs {} bytes and {} of {} are left", name, bytes,
                                           padding > left ? 0 : left - padding, limit_));
  const std::size_t offset = used_ + padding;
  used_ = offset + bytes;
  return offset;
}

std::size_t Carver::bytes_of(std::string_view name, std::size_t count, std::size_t size) {
  if (count > kUnlimited / size)
    throw Error(Code::no_room, fmt::format("Region \"{}\" of {} elements of {} bytes overflows", name, count, size));
  return count * size;
}

Plan make_plan(const PlanRequest& request) {
  check_request(request);
  Plan plan = carve(request, request.kv_tokens);
  if (plan.total_bytes() > request.budget) refuse(request, plan);
  return plan;
}

}  // namespace duet
