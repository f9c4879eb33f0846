// engine_bench: how fast Duet is on this machine, against what the machine allows.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <string>

#include "bench/host_bench.h"
#include "duet/error.h"

namespace {

const std::map<std::string, duet::WeightType> kWeightTypes{{"as-stored", duet::WeightType::as_stored},
                                                           {"f32", duet::WeightType::f32},
                                                           {"f16", duet::WeightType::f16},
                                                           {"bf16", duet::WeightType::bf16},
                                                           {"int8", duet::WeightType::int8},
                                                           {"nf4", duet::WeightType::nf4},
                                                           {"fp4", duet::WeightType::fp4}};

void add_host(CLI::App& app, duet::bench::HostBenchOptions& options) {
  CLI::App* host = app.add_subcommand("host", "Decode and prefill on the CPU, with the memory's read bandwidth");
  auto* checkpoint = host->add_option("--checkpoint", options.checkpoint, "Hugging Face folder or packed file");
  host->add_option("--synthetic", options.synthetic, "Random weights of a real shape")
      ->capture_default_str()
      ->excludes(checkpoint);
  const auto weight_type = [&](const char* flag, duet::WeightType& type, const char* what) {
    host->add_option(flag, type, what)->transform(CLI::CheckedTransformer(kWeightTypes, CLI::ignore_case));
  };
  weight_type("--linear", options.weights.linear, "Storage of the projections; default nf4 for synthetic weights");
  weight_type("--head", options.weights.head, "Storage of the head; default that of the projections");
  weight_type("--embedding", options.weights.embedding, "Storage of the embedding (with a tied head it rules both)");
  host->add_option("--block", options.weights.block_size, "Weights that share a scale")->capture_default_str();
  host->add_flag("--double-quant", options.weights.double_quant, "Scales of 4-bit blocks quantised again");
  host->add_option("--lora", options.adapter, "PEFT folder, applied unmerged");
  host->add_option("--threads", options.threads, "0: all cores")->capture_default_str();
  host->add_option("--prompt", options.prompt_tokens, "Prompt tokens")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  host->add_option("--decode", options.decode_tokens, "Decoded tokens")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  host->add_option("--repeats", options.repeats, "Measurements")->capture_default_str()->check(CLI::PositiveNumber);
  host->add_flag("--json", options.json, "One JSON object instead of a table");
  host->callback([&] {
    using duet::WeightType;
    if (options.checkpoint.empty() && options.weights.linear == WeightType::as_stored)
      options.weights.linear = WeightType::nf4;
    if (options.weights.head == WeightType::as_stored) options.weights.head = options.weights.linear;
    if (options.weights.embedding == WeightType::as_stored) options.weights.embedding = options.weights.head;
    duet::bench::run_host_bench(options);
  });
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures Duet on this machine");
  app.require_subcommand(1);
  duet::bench::HostBenchOptions host;
  add_host(app, host);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const duet::Error& error) {
    fmt::print(stderr, "engine_bench: {}\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
