#include "loaders/tensor_match.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <set>
#include <string_view>

#include "duet/error.h"
#include "loaders/names.h"

namespace duet::loaders {
namespace {

constexpr std::string_view kModelPrefix = "model.";
constexpr std::string_view kHybridPrefix = "model.language_model.";
constexpr std::string_view kHeadModule = "lm_head";
constexpr std::string_view kHeadWeight = "lm_head.weight";

/// Laya's: the numbers that count stand in rl_agent_config.json.
constexpr std::string_view kDeadTemperature = "temperature";

/// Buffers that older versions of transformers saved; the engine computes them.
constexpr std::array<std::string_view, 4> kBuffers = {".rotary_emb.inv_freq", ".rotary_emb.cos_cached",
                                                      ".rotary_emb.sin_cached", ".masked_bias"};

/// Beside the text model of a hybrid: the picture part, and layers that guess tokens ahead.
constexpr std::array<std::string_view, 5> kBesideText = {"model.visual.", "visual.", "mtp.", "model.mtp.",
                                                         "model.language_model.mtp."};

std::string module_of(std::string_view tensor) { return std::string(tensor.substr(0, tensor.rfind('.'))); }

/// "model.layers.12.mlp.up_proj.weight": 12. -1 when the name is not that of a layer.
int layer_of(std::string_view name) {
  for (const std::string_view prefix : {kHybridPrefix, kModelPrefix}) {
    if (!name.starts_with(prefix)) continue;
    name.remove_prefix(prefix.size());
    break;
  }
  constexpr std::string_view kLayers = "layers.";
  if (!name.starts_with(kLayers)) return -1;
  name.remove_prefix(kLayers.size());
  int layer = -1;
  const auto [end, failure] = std::from_chars(name.data(), name.data() + name.size(), layer);
  const bool whole = failure == std::errc() && end != name.data() + name.size() && *end == '.';
  return whole ? layer : -1;
}

bool is_buffer(std::string_view name) {
  return std::any_of(kBuffers.begin(), kBuffers.end(), [&](std::string_view end) { return name.ends_with(end); });
}

bool is_beside_text(std::string_view name) {
  return std::any_of(kBesideText.begin(), kBesideText.end(),
                     [&](std::string_view begin) { return name.starts_with(begin); });
}

/// What stands in the files for the prefix that the rows' names have.
std::string_view prefix_in_files(const ModelSpec& spec, const std::vector<std::string>& held) {
  const auto any = [&](std::string_view prefix, std::string_view but) {
    return std::any_of(held.begin(), held.end(), [&](const std::string& name) {
      return name.starts_with(prefix) && (but.empty() || !name.starts_with(but));
    });
  };
  if (!spec.is_hybrid()) return any(kModelPrefix, {}) ? kModelPrefix : std::string_view();
  if (any(kHybridPrefix, {})) return kHybridPrefix;
  return any(kModelPrefix, "model.visual.") ? kModelPrefix : std::string_view();
}

[[noreturn]] void refuse_missing(const std::vector<std::string>& missing, const ModelSpec& spec,
                                 const std::vector<std::string>& unread, const std::string& source) {
  const std::string& first = missing.front();
  if (first == kHeadWeight)
    throw Error(
        Code::bad_file,
        fmt::format("{} has no {}, and its config does not tie the head to the embedding", quote(source), kHeadWeight),
        "If the model shares the two, set \"tie_word_embeddings\": true in config.json; if not, the download is "
        "not complete");
  std::string what = fmt::format("{} lacks {} of the tensors that a {} of {} layers needs: {}", quote(source),
                                 missing.size(), spec.architecture, spec.layers, listed(missing, 3));
  const std::string nearest = nearest_name(first, unread);
  if (!nearest.empty())
    what += fmt::format("; the nearest to the first, of the names that nobody reads, is {}", quote(nearest));
  throw Error(Code::bad_file, what, "Does config.json belong to these weights, and is the download complete?");
}

/// Sorts the names nobody reads into notes and refusals.
class UnusedTensors {
 public:
  UnusedTensors(const std::vector<std::string>& used, const ModelSpec& spec, const std::string& source)
      : spec_(spec), source_(source) {
    for (const std::string& name : used) modules_.insert(module_of(name));
    modules_.insert(std::string(kHeadModule));
  }

  void add(const std::string& name) {
    const int layer = layer_of(name);
    const bool only_known = spec_.kind == ModelKind::encoder && name != kDeadTemperature;
    if (is_buffer(name)) {
      buffers_.push_back(name);
    } else if (name == kHeadWeight) {
      tied_head_ = true;
    } else if (spec_.is_hybrid() && is_beside_text(name)) {
      beside_text_.push_back(name);
    } else if (!only_known && layer >= spec_.layers) {
      beyond_.push_back(name);
    } else if (only_known || layer >= 0 || modules_.contains(module_of(name)) || spec_.is_hybrid()) {
      refused_.push_back(name);
    } else {
      unknown_.push_back(name);
    }
  }

  std::vector<std::string> notes() const {
    if (!refused_.empty())
      throw Error(
          Code::unsupported,
          fmt::format("{} holds {} that a {} with this config does not use: {}", quote(source_),
                      refused_.size() == 1 ? "a tensor" : fmt::format("{} tensors", refused_.size()),
                      spec_.architecture, listed(refused_)),
          "Leaving them out would change the answers; is config.json the right one (attention_bias, mlp_bias)?");
    std::vector<std::string> notes;
    if (tied_head_)
      notes.push_back(fmt::format("{} is unused: the config ties the head to the embedding", kHeadWeight));
    note(notes, buffers_, "buffers that the engine computes itself");
    note(notes, beyond_, fmt::format("they belong to layers beyond the {} of the config", spec_.layers));
    note(notes, beside_text_, "the picture part and multi-token prediction are no part of the text model");
    note(notes, unknown_, "no part of this model has that name");
    return notes;
  }

 private:
  static void note(std::vector<std::string>& notes, const std::vector<std::string>& names, std::string_view why) {
    if (!names.empty()) notes.push_back(fmt::format("Unused: {} ({})", listed(names), why));
  }

  const ModelSpec& spec_;
  const std::string& source_;
  std::set<std::string, std::less<>> modules_;
  bool tied_head_ = false;
  std::vector<std::string> buffers_, beyond_, beside_text_, refused_, unknown_;
};

}  // namespace

TensorMatch match_tensors(const std::vector<TensorRow>& rows, const ModelSpec& spec,
                          const std::vector<std::string>& held, const std::string& source) {
  const std::set<std::string_view> names(held.begin(), held.end());
  const std::string_view listed_prefix = spec.is_hybrid() ? kHybridPrefix : kModelPrefix;
  const std::string_view prefix = prefix_in_files(spec, held);
  TensorMatch match;
  std::vector<std::string> missing;
  for (const TensorRow& row : rows) {
    std::string name = row.name;
    if (name.starts_with(listed_prefix)) name.replace(0, listed_prefix.size(), prefix);
    if (!names.contains(name)) missing.push_back(name);
    match.names.push_back(std::move(name));
  }

  const std::set<std::string_view> used(match.names.begin(), match.names.end());
  std::vector<std::string> unread;
  std::copy_if(held.begin(), held.end(), std::back_inserter(unread),
               [&](const std::string& name) { return !used.contains(name); });
  if (!missing.empty()) refuse_missing(missing, spec, unread, source);
  UnusedTensors unused(match.names, spec, source);
  for (const std::string& name : unread) unused.add(name);
  match.notes = unused.notes();
  return match;
}

std::vector<std::int64_t> shape_in_files(const TensorRow& row) {
  if (row.part == Part::delta_convolution) return {row.rows, 1, row.columns};
  return row.role == TensorRole::vector ? std::vector{row.columns} : std::vector{row.rows, row.columns};
}

}  // namespace duet::loaders
