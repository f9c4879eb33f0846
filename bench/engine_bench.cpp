// engine_bench: how fast Duet is on this machine, against what the machine allows.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <string>

#ifdef DUET_BENCH_CARD
#include "bench/card_bench.h"
#include "bench/card_proofs.h"
#include "bench/synthetic_engine.h"
#endif
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

#ifdef DUET_BENCH_CARD
void add_card(CLI::App& app, duet::bench::CardBenchOptions& options) {
  CLI::App* card = app.add_subcommand("card", "Decode and prefill on the card, with its read bandwidth");
  card->add_option("--synthetic", options.synthetic, "Random weights of a real shape")->capture_default_str();
  options.weights = duet::bench::small_card_weights();
  const auto weight_type = [&](const char* flag, duet::WeightType& type, const char* what) {
    card->add_option(flag, type, what)->transform(CLI::CheckedTransformer(kWeightTypes, CLI::ignore_case));
  };
  weight_type("--linear", options.weights.linear, "Storage of the projections; default nf4");
  weight_type("--head", options.weights.head, "Storage of an untied head; default int8");
  weight_type("--embedding", options.weights.embedding, "Storage of the embedding and of a tied head; default int8");
  card->add_option("--block", options.weights.block_size, "Weights that share a scale")->capture_default_str();
  card->add_flag("--double-quant", options.weights.double_quant, "Scales of 4-bit blocks quantised again");
  card->add_option("--lora-rank", options.lora_rank, "Rank of an adapter on all projections; 0: none")
      ->capture_default_str()
      ->check(CLI::Range(0, 256));
  card->add_option("--contexts", options.contexts, "Tokens before a decode step")->check(CLI::Range(1, 30000));
  card->add_option("--batches", options.batches, "Sequences of a decode step")->check(CLI::Range(1, 32));
  card->add_option("--prompts", options.prompts, "Tokens of a prefill")->check(CLI::Range(1, 30000));
  card->add_option("--decode", options.decode_tokens, "Decoded tokens")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  card->add_option("--repeats", options.repeats, "Measurements")->capture_default_str()->check(CLI::Range(1, 1000));
  card->add_flag("--json", options.json, "One JSON object instead of a table");
  card->callback([&] { duet::bench::run_card_bench(options); });
}

void add_proofs(CLI::App& app, duet::bench::SixGibOptions& six_gib, duet::bench::SoakOptions& soak,
                unsigned long long& leave) {
  CLI::App* proof = app.add_subcommand("six-gib", "Two 1.5B models and more inside 6 GiB less a display's 300 MiB");
  proof->add_option("--requests", six_gib.requests, "Of the two models, in turn")
      ->capture_default_str()
      ->check(CLI::Range(10, 1000000));
  proof->add_flag("--json", six_gib.json, "One JSON array instead of tables");
  proof->callback([&] { duet::bench::run_six_gib(six_gib); });

  CLI::App* all =
      app.add_subcommand("soak", "Requests, cancels, adapter swaps and a model with NaN at once, for minutes");
  all->add_option("--minutes", soak.minutes, "How long")->capture_default_str()->check(CLI::Range(0.01, 10000.0));
  all->add_option("--seed", soak.seed, "Of the random requests")->capture_default_str();
  all->callback([&] { duet::bench::run_soak(soak); });

  CLI::App* fill = app.add_subcommand("fill-card", "Hold the card's memory until standard input ends");
  fill->add_option("--leave", leave, "Bytes left free")->required();
  fill->callback([&] { duet::bench::fill_card(leave); });
}
#endif

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures Duet on this machine");
  app.require_subcommand(1);
  duet::bench::HostBenchOptions host;
  add_host(app, host);
#ifdef DUET_BENCH_CARD
  duet::bench::CardBenchOptions card;
  duet::bench::SixGibOptions six_gib;
  duet::bench::SoakOptions soak;
  unsigned long long leave = 0;
  add_card(app, card);
  add_proofs(app, six_gib, soak, leave);
#endif
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
