#include "loaders/kev_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include "duet/error.h"
#include "loaders/json_file.h"
#include "loaders/kev_head_file.h"
#include "loaders/loaders.h"
#include "loaders/names.h"
#include "loaders/tokenizer_json.h"

namespace duet::loaders {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAdapterConfig = "adapter_config.json";
constexpr std::string_view kModelConfig = "config.json";
constexpr std::int64_t kDefaultHeadSize = 256;
constexpr std::int64_t kLargestNumber = 1 << 20;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// What lies beside the head: an adapter rules over whole weights.
KevWeights weights_in(const fs::path& folder) {
  if (is_there(folder / kAdapterConfig)) return KevWeights::lora;
  if (is_there(folder / kModelConfig)) return KevWeights::full;
  throw Error(Code::not_found,
              fmt::format("{} has neither {} nor {}", quote(folder.string()), kAdapterConfig, kModelConfig),
              "A Kev's head stands beside an adapter or beside the whole model");
}

/// Files without the field are older than full weights; converters leave it out of their JSON.
KevWeights declared_weights(const KevHeadFile& file, KevWeights found) {
  if (!file.weights) return file.is_torch_file ? KevWeights::lora : found;
  for (const KevWeights weights : {KevWeights::lora, KevWeights::full})
    if (*file.weights == name_of(weights)) return weights;
  throw Error(Code::unsupported,
              fmt::format("{}: weights is {}; Duet reads lora and full", quote(file.source), quote(*file.weights)));
}

KevWeights checked_weights(const fs::path& folder, const KevHeadFile& file) {
  const KevWeights found = weights_in(folder), declared = declared_weights(file, found);
  if (found != declared)
    throw Error(Code::bad_file,
                fmt::format("{}: weights is {}{}, and beside it lies {}", quote(file.source), name_of(declared),
                            file.weights ? "" : " (what files without the field mean)",
                            found == KevWeights::lora ? "an adapter" : "a model without an adapter"),
                "Are all files of this folder of one checkpoint?");
  return found;
}

void refuse_unsupported(const KevHeadFile& file) {
  const auto refuse = [&](const std::optional<bool>& value, std::string_view key, std::string_view what) {
    if (value.value_or(false))
      throw Error(Code::unsupported, fmt::format("{}: {} is true: {}", quote(file.source), key, what));
  };
  refuse(file.option_isolation, "option_isolation", "options that do not see each other are not supported");
  refuse(file.special_embeddings, "special_embeddings", "trained rows of the embedding are not supported");
}

/// All elements; Error(non_finite) for one that is no number.
std::vector<float> numbers_of(const Tensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements));
  read_floats(tensor, 0, values);
  const auto bad = std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  if (bad != values.end())
    throw Error(Code::non_finite, fmt::format("{}: element {} is {}", where(tensor), bad - values.begin(), *bad),
                "The checkpoint is damaged or was saved after training diverged; take another copy");
  return values;
}

void expect_shape(const Tensor& tensor, const std::vector<std::int64_t>& shape) {
  if (!is_float(tensor.dtype))
    throw Error(Code::bad_file,
                fmt::format("{} is of type {}; a float type was expected", where(tensor), name_of(tensor.dtype)));
  if (tensor.shape != shape)
    throw Error(
        Code::bad_file,
        fmt::format("{} has the shape {}; {} was expected", where(tensor), shape_text(tensor.shape), shape_text(shape)),
        "Is head_dim right, and are all four tensors of one head?");
}

const Tensor& tensor_of(const KevHeadFile& file, std::string_view name) {
  const auto found =
      std::find_if(file.tensors.begin(), file.tensors.end(), [&](const auto& named) { return named.first == name; });
  if (found == file.tensors.end())
    throw Error(Code::bad_file, fmt::format("{}: the head has no {}", quote(file.source), name),
                "Kev's heads are q.weight, q.bias, k.weight and k.bias");
  return found->second;
}

PointerHead read_head(const KevHeadFile& file) {
  constexpr std::array<std::string_view, 4> kNames = {"q.weight", "q.bias", "k.weight", "k.bias"};
  for (const auto& [name, tensor] : file.tensors)
    if (std::find(kNames.begin(), kNames.end(), name) == kNames.end())
      throw Error(Code::unsupported,
                  fmt::format("{}: the head holds {}, which Kev's heads do not have", quote(file.source), quote(name)));
  const std::int64_t dims = file.head_size.value_or(kDefaultHeadSize);
  const Tensor &query = tensor_of(file, "q.weight"), &key = tensor_of(file, "k.weight");
  const std::int64_t hidden = query.shape.empty() ? 0 : query.shape.back();
  if (dims < 1 || dims > kLargestNumber || hidden < 1 || hidden > kLargestNumber)
    throw Error(Code::bad_file,
                fmt::format("{} has the shape {} with head_dim {}", where(query), shape_text(query.shape), dims));
  const Tensor &query_bias = tensor_of(file, "q.bias"), &key_bias = tensor_of(file, "k.bias");
  expect_shape(query, {dims, hidden});
  expect_shape(query_bias, {dims});
  expect_shape(key, {dims, hidden});
  expect_shape(key_bias, {dims});
  const double temperature = file.temperature.value_or(1.0);
  if (!std::isfinite(temperature) || temperature <= 0)
    throw Error(Code::bad_file,
                fmt::format("{}: temperature is {}; a number above 0 was expected", quote(file.source), temperature));
  return {.hidden = static_cast<int>(hidden),
          .dims = static_cast<int>(dims),
          .query_weight = numbers_of(query),
          .key_weight = numbers_of(key),
          .query_bias = numbers_of(query_bias),
          .key_bias = numbers_of(key_bias),
          .temperature = temperature};
}

void compare_rank(const fs::path& folder, const KevCheckpoint& kev, std::vector<std::string>& report) {
  if (kev.weights != KevWeights::lora || kev.lora_rank == 0) return;
  const fs::path path = folder / kAdapterConfig;
  const Json json = read_json_file(path);
  const JsonObject config(json, path.string());
  const std::int64_t rank = config.integer_or("r", 8, 1, kLargestNumber);
  if (rank != kev.lora_rank)
    report.push_back(fmt::format("{} is {}, and {} says {}; the adapter's is used", config.where("r"), rank,
                                 quote(kev.head_file), kev.lora_rank));
}

// ---- tokenizers ----

/// The first id that means something else, or nothing when the two are the same.
std::optional<std::int32_t> first_difference(const Tokenizer& one, const Tokenizer& other) {
  const std::int32_t end = std::max(one.vocabulary_size(), other.vocabulary_size());
  for (std::int32_t id = 0; id < end; ++id)
    if (one.token_of(id) != other.token_of(id) || one.is_control(id) != other.is_control(id)) return id;
  return std::nullopt;
}

void compare_tokenizer_json(const fs::path& base, const Tokenizer& tokenizer, const fs::path& folder,
                            std::vector<std::string>& report) {
  const auto own = read_checkpoint_text(folder, "tokenizer.json");
  if (!own) return;
  const auto same = [&](std::string_view file) {
    return read_checkpoint_text(base, file) == read_checkpoint_text(folder, file);
  };
  if (same("tokenizer.json") && same("tokenizer_config.json")) return;
  const std::string file = quote((folder / "tokenizer.json").string());
  try {
    const auto other = load_tokenizer(folder);
    if (const auto id = first_difference(tokenizer, *other))
      report.push_back(fmt::format("{} is not the base's: token {} is {}, the base's is {}; the base's is used", file,
                                   *id, quote(other->token_of(*id)), quote(tokenizer.token_of(*id))));
  } catch (const Error& error) {
    report.push_back(fmt::format("{} is not used; the base's is. It cannot be read: {}", file, error.what()));
  }
}

/// A file of older libraries, which some repositories kept from an older base.
void compare_added_tokens(const Tokenizer& tokenizer, const fs::path& folder, std::vector<std::string>& report) {
  const fs::path path = folder / "added_tokens.json";
  if (!is_there(path)) return;
  try {
    const Json json = read_json_file(path);
    const JsonObject tokens(json, path.string());
    for (const std::string& token : tokens.keys()) {
      const std::int64_t id = tokens.integer(token, 0, std::numeric_limits<std::int32_t>::max());
      const auto base_id = tokenizer.id_of(token);
      if (base_id && *base_id == id) continue;
      report.push_back(fmt::format("{} is of another tokenizer: {} is {}, {}; the base's is used", quote(path.string()),
                                   quote(token), id,
                                   base_id ? fmt::format("the base's {}", *base_id) : "and the base has none"));
      return;
    }
  } catch (const Error& error) {
    report.push_back(fmt::format("{} is not used. It cannot be read: {}", quote(path.string()), error.what()));
  }
}

}  // namespace

std::string_view name_of(KevWeights weights) { return weights == KevWeights::lora ? "lora" : "full"; }

bool is_kev_folder(const fs::path& folder) {
  return has_kev_head(folder) && (is_there(folder / kAdapterConfig) || is_there(folder / kModelConfig));
}

bool is_kev(const ModelOptions& options) {
  return is_kev_folder(options.path) ||
         std::any_of(options.adapters.begin(), options.adapters.end(),
                     [](const AdapterOptions& adapter) { return is_kev_folder(adapter.path); });
}

KevCheckpoint read_kev_checkpoint(const fs::path& folder, std::vector<std::string>& report) {
  const KevHeadFile file = read_kev_head_file(folder, report);
  refuse_unsupported(file);
  KevCheckpoint kev;
  kev.weights = checked_weights(folder, file);
  kev.head = read_head(file);
  kev.base = file.base.value_or("");
  kev.base_revision = file.base_revision.value_or("");
  kev.weights_dtype = file.weights_dtype.value_or("fp32");
  kev.head_file = file.source;
  const std::int64_t rank = file.lora_rank.value_or(0);
  if (rank < 0 || rank > kLargestNumber)
    throw Error(Code::bad_file, fmt::format("{}: lora is {}; a rank was expected", quote(file.source), rank));
  kev.lora_rank = static_cast<int>(rank);
  compare_rank(folder, kev, report);
  if (!kev.base.empty())
    report.push_back(fmt::format("{} was trained on {}{}", quote(kev.head_file), quote(kev.base),
                                 kev.base_revision.empty() ? "" : " at revision " + quote(kev.base_revision)));
  return kev;
}

void check_kev_base(const KevCheckpoint& kev, const ModelSpec& base, std::string_view base_name) {
  if (kev.head.hidden == base.hidden) return;
  throw Error(Code::bad_file,
              fmt::format("{} reads rows of {} numbers; those of {} have {}", quote(kev.head_file), kev.head.hidden,
                          quote(base_name), base.hidden),
              kev.base.empty() ? std::string("Give the base it was trained on")
                               : fmt::format("Give the base it was trained on, {}", printable(kev.base)));
}

std::shared_ptr<const Tokenizer> load_kev_tokenizer(const fs::path& base, const fs::path& folder,
                                                    std::vector<std::string>& report) {
  auto tokenizer = load_tokenizer(base);
  std::error_code ignored;
  if (fs::equivalent(base, folder, ignored)) return tokenizer;
  compare_tokenizer_json(base, *tokenizer, folder, report);
  compare_added_tokens(*tokenizer, folder, report);
  return tokenizer;
}

}  // namespace duet::loaders
