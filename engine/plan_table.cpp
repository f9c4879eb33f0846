// The table of --plan.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "engine/plan.h"

namespace duet {

namespace {

/// One line of the table: equal regions of several layers together.
struct TableLine {
  std::string name;
  std::string storage;
  std::size_t bytes = 0;
  std::size_t count = 1;
};

std::string storage_text(const StorageSpec& spec) {
  std::string text(name_of(spec.storage));
  if (is_quantised(spec.storage)) text += fmt::format("/{}", spec.block_size);
  if (spec.nested) text += " dq";
  return text;
}

/// "model.layers.3.mlp.up_proj.weight" -> "model.layers.*.mlp.up_proj.weight"
std::string without_layer(const TensorRow& row) {
  const std::string number = fmt::format(".{}.", row.layer);
  const std::size_t at = row.layer < 0 ? std::string::npos : row.name.find(number);
  return at == std::string::npos ? row.name : row.name.substr(0, at) + ".*." + row.name.substr(at + number.size());
}

std::vector<TableLine> lines_of(const PlannedBase& base) {
  std::vector<TableLine> lines;
  for (std::size_t i = 0; i < base.tensors.size(); ++i) {
    TableLine line{.name = without_layer(base.tensors[i].row),
                   .storage = storage_text(base.tensors[i].storage),
                   .bytes = base.regions[i].bytes};
    const auto same = std::find_if(lines.begin(), lines.end(), [&](const TableLine& other) {
      return other.name == line.name && other.storage == line.storage && other.bytes == line.bytes;
    });
    if (same == lines.end())
      lines.push_back(std::move(line));
    else
      ++same->count;
  }
  return lines;
}

using Text = fmt::memory_buffer;

void add_line(Text& text, const TableLine& line) {
  const std::uint64_t all = std::uint64_t{line.bytes} * line.count;
  fmt::format_to(std::back_inserter(text), "  {:<46} {:<9} {:>5} x {:>15} = {:>16}  {:>9}\n", line.name, line.storage,
                 line.count, grouped_digits(line.bytes), grouped_digits(all), human_bytes(all));
}

void add_sum(Text& text, std::string_view name, std::uint64_t bytes) {
  fmt::format_to(std::back_inserter(text), "  {:<46} {:<9} {:>5}   {:>15}   {:>16}  {:>9}\n", name, "", "", "",
                 grouped_digits(bytes), human_bytes(bytes));
}

/// The models of one base, their weights and their adapter slots.
void add_base(Text& text, const Plan& plan, int base_index) {
  const PlannedBase& base = plan.bases[static_cast<std::size_t>(base_index)];
  std::vector<const PlannedModel*> models;
  std::string names;
  for (const PlannedModel& model : plan.models) {
    if (model.base != base_index) continue;
    models.push_back(&model);
    names += (names.empty() ? "" : ", ") + model.name;
  }
  fmt::format_to(std::back_inserter(text), "\n{}: {} ({}{})\n", names, base.path, base.spec.architecture,
                 models.size() > 1 ? fmt::format(", weights shared by {} models", models.size()) : "");
  std::uint64_t sum = 0;
  for (const TableLine& line : lines_of(base)) {
    add_line(text, line);
    sum += std::uint64_t{line.bytes} * line.count;
  }
  for (const PlannedModel* model : models) {
    if (model->adapter_slots.empty()) continue;
    const TableLine slots{.name = fmt::format("adapter slots of {}", model->name),
                          .storage = "",
                          .bytes = model->adapter_slots.front().bytes,
                          .count = model->adapter_slots.size()};
    add_line(text, slots);
    sum += std::uint64_t{slots.bytes} * slots.count;
  }
  for (const PlannedModel* model : models) {
    if (model->state_slots.empty()) continue;
    const TableLine slots{.name = fmt::format("recurrent states of {}", model->name),
                          .storage = std::string(name_of(Storage::f32)),
                          .bytes = model->state_slots.front().bytes,
                          .count = model->state_slots.size()};
    add_line(text, slots);
    sum += std::uint64_t{slots.bytes} * slots.count;
  }
  for (const PlannedModel* model : models) {
    if (model->state.bytes == 0) continue;
    add_line(text,
             {.name = fmt::format("state of {}", model->name), .storage = "", .bytes = model->state.bytes, .count = 1});
    sum += model->state.bytes;
  }
  add_sum(text, fmt::format("sum of {}", names), sum);
}

std::uint64_t bytes_of_regions(const Plan& plan) {
  std::uint64_t sum = plan.pages.bytes + plan.scratch.bytes;
  for (const PlannedBase& base : plan.bases)
    for (const Region& region : base.regions) sum += region.bytes;
  for (const PlannedModel& model : plan.models)
    for (const Region& region : model.adapter_slots) sum += region.bytes;
  for (const PlannedModel& model : plan.models)
    for (const Region& region : model.state_slots) sum += region.bytes;
  for (const PlannedModel& model : plan.models) sum += model.state.bytes;
  return sum;
}

}  // namespace

std::string table_of(const Plan& plan) {
  Text text;
  fmt::format_to(std::back_inserter(text), "Plan for the {} backend\n", plan.backend);
  for (std::size_t base = 0; base < plan.bases.size(); ++base) add_base(text, plan, static_cast<int>(base));

  fmt::format_to(std::back_inserter(text), "\nshared by all models\n");
  if (plan.page_count > 0)
    add_line(text, {.name = "KV pages",
                    .storage = std::string(name_of(plan.kv_storage)),
                    .bytes = plan.page_bytes,
                    .count = static_cast<std::size_t>(plan.page_count)});
  add_line(text, {.name = plan.scratch.name, .storage = "", .bytes = plan.scratch.bytes, .count = 1});
  add_sum(text, "alignment between regions", plan.arena_bytes - bytes_of_regions(plan));
  if (plan.context_bytes > 0) add_sum(text, "device context (outside the arena)", plan.context_bytes);

  fmt::format_to(std::back_inserter(text), "\n");
  add_sum(text, "total", plan.total_bytes());
  add_sum(text, "budget", plan.budget);
  add_sum(text, "left", plan.budget - std::min<std::uint64_t>(plan.budget, plan.total_bytes()));

  fmt::format_to(std::back_inserter(text), "\nKV cache\n");
  for (const PlannedModel& model : plan.models) {
    if (model.kv_bytes_per_token == 0) {
      fmt::format_to(std::back_inserter(text), "  {}: none, it encodes whole rows; the longest row has {} tokens\n",
                     model.name, grouped_digits(static_cast<std::uint64_t>(model.max_context_tokens)));
      continue;
    }
    const auto per_token = static_cast<std::uint64_t>(model.kv_bytes_per_token);
    const auto pool = static_cast<std::uint64_t>(plan.page_count * model.tokens_per_page);
    fmt::format_to(std::back_inserter(text),
                   "  {}: {} B per 1,000 tokens ({}), {} tokens a page; the pool alone holds {} tokens, the longest "
                   "sequence {}\n",
                   model.name, grouped_digits(1000 * per_token), human_bytes(1000 * per_token), model.tokens_per_page,
                   grouped_digits(pool), grouped_digits(static_cast<std::uint64_t>(model.max_context_tokens)));
  }
  return fmt::to_string(text);
}

std::string grouped_digits(std::uint64_t value) {
  std::string digits = std::to_string(value);
  for (std::size_t at = digits.size(); at > 3;) digits.insert(at -= 3, 1, ',');
  return digits;
}

std::string human_bytes(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1023.5 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, decimals, kUnits[unit]);
}

}  // namespace duet
