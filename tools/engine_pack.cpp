// engine_pack: a checkpoint into one packed file, quantising on the way; or a synthetic one of a real shape.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>

#include "duet/error.h"
#include "engine/plan.h"
#include "loaders/loaders.h"
#include "loaders/names.h"
#include "loaders/packed_file.h"
#include "loaders/synthetic.h"
#include "tools/run/terminal.h"

namespace duet {
namespace {

namespace fs = std::filesystem;
using loaders::TextFiles;

/// Small files that travel inside a packed file: all that tokenizers, templates and configs are read from.
constexpr std::array kTexts = {"config.json",           "generation_config.json",  "tokenizer.json",
                               "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                               "chat_template.jinja",   "chat_template.json",      "rl_agent_config.json"};

struct Arguments {
  std::string checkpoint;
  std::string out;
  std::string synthetic;
  std::string format = "packed";
  int lora_rank = 0;
  std::uint64_t seed = 1;
  WeightOptions weights = {.linear = WeightType::as_stored};
  bool force = false;
  bool quiet = false;
};

// ---- summary ----

std::string storage_text(const StorageSpec& spec) {
  if (!is_quantised(spec.storage)) return std::string(name_of(spec.storage));
  return fmt::format("{}, blocks of {}{}", name_of(spec.storage), spec.block_size, spec.nested ? ", double quant" : "");
}

std::string_view role_text(TensorRole role) {
  switch (role) {
    case TensorRole::embedding:
      return "embedding";
    case TensorRole::head:
      return "head";
    case TensorRole::linear:
      return "matrices";
    case TensorRole::decision:
      return "decision head";
    case TensorRole::vector:
      return "norms and biases";
  }
  return "";
}

/// One line for each role and storage: how many, how many parameters, how many bytes.
void print_summary(const WeightSource& source) {
  struct Sum {
    std::int64_t tensors = 0, parameters = 0;
    std::uint64_t bytes = 0;
  };
  std::map<std::pair<TensorRole, std::string>, Sum> sums;
  Sum total;
  for (const WeightTensor& tensor : source.tensors()) {
    for (Sum* sum : {&sums[{tensor.row.role, storage_text(tensor.storage)}], &total}) {
      sum->tensors += 1;
      sum->parameters += tensor.row.rows * tensor.row.columns;
      sum->bytes += tensor.bytes;
    }
  }
  const auto line = [](std::string_view what, std::string_view storage, const Sum& sum) {
    fmt::print("{:<18}{:<34}{:>8}{:>16}{:>14}{:>9.2f}\n", what, storage, sum.tensors, sum.parameters,
               human_bytes(sum.bytes), 8.0 * static_cast<double>(sum.bytes) / static_cast<double>(sum.parameters));
  };
  fmt::print("{:<18}{:<34}{:>8}{:>16}{:>14}{:>9}\n", "", "storage", "tensors", "parameters", "size", "bits");
  for (const auto& [key, sum] : sums) line(role_text(key.first), key.second, sum);
  line("all", "", total);
}

// ---- jobs ----

void check_target(const Arguments& arguments, const fs::path& written) {
  std::error_code ignored;
  if (arguments.force || !fs::exists(written, ignored)) return;
  throw Error(Code::invalid_argument, fmt::format("{} exists already", loaders::quote(written.string())),
              "Remove it, choose another name, or pass --force");
}

void pack(const Arguments& arguments, const WeightSource& source, const TextFiles& texts) {
  check_target(arguments, arguments.out);
  {
    run::Progress bar("packing", run::Progress::Unit::bytes, !arguments.quiet);
    loaders::write_packed_file(arguments.out, source, texts,
                               [&](std::uint64_t done, std::uint64_t total) { bar.show(done, total); });
  }
  if (arguments.quiet) return;
  for (const std::string& note : source.report()) fmt::print("{}\n", note);
  print_summary(source);
  fmt::print("{}: {}\n", arguments.out, human_bytes(fs::file_size(arguments.out)));
}

void pack_checkpoint(const Arguments& arguments) {
  const auto source = loaders::open_checkpoint(arguments.checkpoint, arguments.weights);
  TextFiles texts;
  for (const char* name : kTexts)
    if (auto text = loaders::read_checkpoint_text(arguments.checkpoint, name))
      texts.emplace_back(name, std::move(*text));
  pack(arguments, *source, texts);
}

/// The one 16-bit type of a folder in the Hugging Face layout.
Storage folder_storage(const WeightOptions& weights) {
  for (const WeightType type : {weights.head, weights.embedding})
    if (type != WeightType::as_stored && type != weights.linear)
      throw Error(Code::invalid_argument, "A safetensors folder has one type for all its tensors",
                  "Leave --head and --embedding out");
  if (weights.linear == WeightType::as_stored || weights.linear == WeightType::bf16) return Storage::bf16;
  if (weights.linear == WeightType::f16) return Storage::f16;
  throw Error(Code::invalid_argument, "A safetensors folder is written in 16 bits only",
              "Take --weights bf16 or f16, or leave --format out for a packed file");
}

void make_synthetic_folder(Arguments arguments) {
  const Storage storage = folder_storage(arguments.weights);
  check_target(arguments, fs::path(arguments.out) / "config.json");
  arguments.weights.linear = arguments.weights.embedding = arguments.weights.head =
      storage == Storage::f16 ? WeightType::f16 : WeightType::bf16;
  const auto source = loaders::make_synthetic(arguments.synthetic, arguments.weights, arguments.seed);
  {
    run::Progress bar("packing", run::Progress::Unit::bytes, !arguments.quiet);
    loaders::write_hf_folder(arguments.out, *source, loaders::synthetic_texts(arguments.synthetic), storage,
                             [&](std::uint64_t done, std::uint64_t total) { bar.show(done, total); });
  }
  if (!arguments.quiet) print_summary(*source);
}

void make_synthetic(const Arguments& arguments) {
  if (arguments.lora_rank > 0) {
    check_target(arguments, fs::path(arguments.out) / "adapter_config.json");
    loaders::write_synthetic_adapter(arguments.out, arguments.synthetic, arguments.lora_rank, arguments.seed);
    if (!arguments.quiet)
      fmt::print("{}: adapter of rank {} for {}\n", arguments.out, arguments.lora_rank, arguments.synthetic);
  } else if (arguments.format == "safetensors") {
    make_synthetic_folder(arguments);
  } else {
    const auto source = loaders::make_synthetic(arguments.synthetic, arguments.weights, arguments.seed);
    pack(arguments, *source, loaders::synthetic_texts(arguments.synthetic));
  }
}

// ---- command line ----

const std::map<std::string, WeightType> kTypes = {{"as-stored", WeightType::as_stored},
                                                  {"f32", WeightType::f32},
                                                  {"f16", WeightType::f16},
                                                  {"bf16", WeightType::bf16},
                                                  {"int8", WeightType::int8},
                                                  {"nf4", WeightType::nf4},
                                                  {"fp4", WeightType::fp4}};

void add_type(CLI::App& app, const std::string& flag, WeightType& type, const std::string& help) {
  app.add_option_function<std::string>(
         flag, [&type](const std::string& name) { type = kTypes.at(name); }, help)
      ->check(CLI::IsMember(kTypes))
      ->type_name("TYPE");
}

void describe(CLI::App& app, Arguments& arguments, std::vector<std::string>& paths) {
  app.add_option("paths", paths,
                 "CHECKPOINT OUT: a Hugging Face folder (or packed file) and the .duet file to write. "
                 "With --synthetic: OUT alone")
      ->expected(1, 2)
      ->required()
      ->type_name("PATH");
  add_type(app, "--weights", arguments.weights.linear,
           "Type of the layers' matrices: as-stored (default), nf4, fp4, int8, f16, bf16, f32");
  add_type(app, "--head", arguments.weights.head, "Type of an untied lm_head (default: as-stored)");
  add_type(app, "--embedding", arguments.weights.embedding,
           "Type of the embedding, and of a head tied to it (default: as-stored)");
  app.add_option("--block", arguments.weights.block_size, "Elements that share a scale: 32..4096; int8 32 or 64")
      ->capture_default_str();
  app.add_flag("--double-quant", arguments.weights.double_quant, "Quantise the scales of 4-bit blocks again");
  app.add_option("--synthetic", arguments.synthetic,
                 fmt::format("Random weights of a real shape instead of a checkpoint: {}",
                             fmt::join(loaders::synthetic_names(), ", ")))
      ->type_name("NAME");
  app.add_option("--synthetic-lora", arguments.lora_rank,
                 "With --synthetic: write a PEFT adapter folder of this rank for that shape")
      ->type_name("RANK")
      ->check(CLI::PositiveNumber);
  app.add_option("--format", arguments.format, "With --synthetic: packed, or safetensors for a 16-bit folder")
      ->check(CLI::IsMember({"packed", "safetensors"}))
      ->capture_default_str();
  app.add_option("--seed", arguments.seed, "With --synthetic: seed of the random numbers")->capture_default_str();
  app.add_flag("--force", arguments.force, "Write over what is there");
  app.add_flag("--quiet", arguments.quiet, "No bar, no summary");
  app.footer(
      "A type for a matrix that is 4-bit already is refused unless it is a float type.\n"
      "Exit codes: 0 done, 1 a flag that makes no sense, 2 not found, 3 a damaged file, 4 unsupported, 5 no room,\n"
      "6 a value that is not finite or does not fit, 10 our own mistake.");
}

void place_paths(Arguments& arguments, const std::vector<std::string>& paths) {
  const std::size_t wanted = arguments.synthetic.empty() ? 2 : 1;
  if (paths.size() != wanted)
    throw Error(Code::invalid_argument,
                wanted == 2 ? "A checkpoint and the file to write were expected, and one path was given"
                            : "With --synthetic the file to write was expected alone, and two paths were given");
  if (arguments.synthetic.empty() && (arguments.lora_rank > 0 || arguments.format != "packed"))
    throw Error(Code::invalid_argument, "--synthetic-lora and --format go with --synthetic",
                fmt::format("Add --synthetic {}", loaders::synthetic_names().front()));
  if (wanted == 2) arguments.checkpoint = paths.front();
  arguments.out = paths.back();
}

int pack_main(int count, char** values) {
  CLI::App app("Packs a checkpoint into one file that Duet maps and copies as it is.", "engine_pack");
  Arguments arguments;
  std::vector<std::string> paths;
  describe(app, arguments, paths);
  try {
    app.parse(count, values);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return 0;
  } catch (const CLI::ParseError& error) {
    throw Error(Code::invalid_argument, error.what(), "See engine_pack --help");
  }
  place_paths(arguments, paths);
  if (arguments.synthetic.empty()) {
    pack_checkpoint(arguments);
  } else {
    make_synthetic(arguments);
  }
  return 0;
}

}  // namespace
}  // namespace duet

int main(int count, char** values) {
  try {
    return duet::pack_main(count, values);
  } catch (const duet::Error& error) {
    fmt::print(stderr, "engine_pack: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "engine_pack: The machine ran out of memory.\n");
    return static_cast<int>(duet::Code::no_room);
  } catch (const std::exception& error) {
    fmt::print(stderr, "engine_pack: {}.\n", error.what());
    return static_cast<int>(duet::Code::internal);
  }
}
