#include "tools/run/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "loaders/names.h"
#include "tools/run/command_line.h"
#include "tools/run/decision_options.h"
#include "tools/run/parse.h"

namespace duet::run {
namespace {

// Texts as they were written; turned into values once everything is read.
struct Texts {
  std::string kev, kev_lora, laya, laya_lora;
  std::vector<std::string> models, adapters, adapter_scales, chat_templates, systems;
  std::vector<std::string> weights, heads, embeddings, blocks, double_quants, host_embeddings;
  std::string budget = "6GiB", device = "auto", kv_policy = "keep", kv_type = "auto", length_policy = "reject";
  std::vector<std::string> logit_biases;
  std::string rules, only, expect;
  bool route = false, compare = false;
};

constexpr const char* kFooter = R"(Which model answers:
  With --kev and --laya, Laya answers first and Kev takes over by the rules (--route). --compare shows every
  model's answer, --only NAME asks one. A single model needs none of these.

Where the text comes from, in this order:
  --input, --prompt-file, the prompt, standard input when it is no terminal, else an interactive session.

JSONL (--input, --output):
  A line in is {"prompt": "..."} or {"messages": [{"role", "content"}]} or {"prompt_ids": [...]}, and may have "id",
  "system", "raw", "model", "adapter" and the settings of "Answers" and "Sampling" with "_" for "-". A line out has
  "line", "id" and what --json prints; a request that failed has "error". Lines that are in the output already are
  not asked again.

Exit codes:
  0 ok   1 invalid argument   2 not found   3 bad file   4 unsupported   5 no room   6 non-finite numbers
  7 cancelled (Ctrl-C)   8 deadline   9 device   10 internal   130 second Ctrl-C
  With --input: the code of the first line that failed; every other line is answered all the same.

Examples:
  engine_run --laya models/laya --kev models/kev "My card was charged twice"
  engine_run --config pair.toml --input tickets.jsonl --output answers.jsonl
  engine_run --model small=models/qwen2.5-0.5b --weights nf4 --raw "Once upon a time" --max-tokens 40
  engine_run --laya models/laya --kev models/kev --budget 6GiB --plan)";

void add_model_options(CLI::App& app, Texts& texts, RunOptions& options) {
  const std::string group = "Models";
  app.add_option("--kev", texts.kev, "The deep model: a Hugging Face folder or packed file")
      ->type_name("DIR")
      ->group(group);
  app.add_option("--kev-lora", texts.kev_lora, "Kev's adapter: a PEFT folder")->type_name("DIR")->group(group);
  app.add_option("--laya", texts.laya, "The fast model")->type_name("DIR")->group(group);
  app.add_option("--laya-lora", texts.laya_lora, "Laya's adapter")->type_name("DIR")->group(group);
  add_list(app, "--model", texts.models, "Any model by a name of its own; as often as needed")
      ->type_name("NAME=DIR")
      ->group(group);
  add_list(app, "--lora", texts.adapters, "An adapter of a model, called as the model unless named")
      ->type_name("MODEL[:NAME]=DIR")
      ->group(group);
  add_list(app, "--lora-scale", texts.adapter_scales, "Multiplies an adapter's own scale (1)")
      ->type_name("[MODEL[:NAME]=]X")
      ->group(group);
  app.add_option("--adapter", options.request.adapter, "Adapter that answers: a name, or none (the model's first)")
      ->type_name("NAME")
      ->group(group);
  add_list(app, "--chat-template", texts.chat_templates, "A family's template in place of the checkpoint's own")
      ->type_name("[MODEL=]FAMILY")
      ->group(group);
  add_list(app, "--model-system", texts.systems, "A model's system message, for questions that bring none")
      ->type_name("MODEL=TEXT")
      ->group(group);
  add_list(app, "--weights", texts.weights,
           "as-stored, f32, f16, bf16, int8, nf4, fp4, or auto: int8 for a Kev, else as stored (auto)")
      ->type_name("[MODEL=]TYPE")
      ->group(group);
  add_list(app, "--head", texts.heads, "The same for the output head (as-stored)")
      ->type_name("[MODEL=]TYPE")
      ->group(group);
  add_list(app, "--embedding", texts.embeddings, "The same for the embedding (as-stored)")
      ->type_name("[MODEL=]TYPE")
      ->group(group);
  add_list(app, "--block", texts.blocks, "Weights that share a scale when quantising (64)")
      ->type_name("[MODEL=]N")
      ->group(group);
  app.add_flag("--double-quant", texts.double_quants, "Quantise 4-bit scales again; =off, =MODEL=on for one model")
      ->group(group);
  app.add_flag("--embedding-on-host", texts.host_embeddings,
               "Keep the embedding in the host's memory; =MODEL=on for one model")
      ->group(group);
}

void add_engine_options(CLI::App& app, Texts& texts, RunOptions& options) {
  const std::string group = "Engine";
  app.add_option("--device", texts.device, "auto, cuda or host")
      ->type_name("NAME")
      ->capture_default_str()
      ->group(group);
  app.add_option("--budget", texts.budget, "Memory for everything, on a card with the CUDA context")
      ->type_name("SIZE")
      ->capture_default_str()
      ->group(group);
  app.add_option("--kv-tokens", options.engine.kv_tokens, "KV tokens each model could hold alone (0: 4096)")
      ->type_name("N")
      ->group(group);
  app.add_option("--kv-policy", texts.kv_policy, "What a switch does with the other model's pages: keep or clear")
      ->type_name("NAME")
      ->capture_default_str()
      ->group(group);
  app.add_option("--kv-type", texts.kv_type, "How keys and values are held: auto, f16, bf16, int8; f32 on the host")
      ->type_name("NAME")
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-sequences", options.engine.max_sequences, "Requests in progress at one time")
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--prefill-chunk", options.engine.prefill_chunk_tokens, "Prompt tokens of one step")
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--threads", options.engine.threads, "Threads of the host backend (0: all cores)")
      ->type_name("N")
      ->group(group);
  app.add_flag("--plan", options.plan, "Print where every byte would lie, and stop")->group(group);
}

void add_routing_options(CLI::App& app, Texts& texts) {
  const std::string group = "Which model answers";
  app.add_flag("--route", texts.route, "Fast model first, deep one by the rules")->group(group);
  app.add_flag("--compare", texts.compare, "Every model's answer, side by side")->group(group);
  app.add_option("--only", texts.only, "One model")->type_name("NAME")->group(group);
  app.add_option("--rules", texts.rules, "Rules of the router, or of decisions: a JSON file")
      ->type_name("FILE")
      ->group(group);
}

void add_text_options(CLI::App& app, RunOptions& options) {
  const std::string group = "Text";
  app.add_option("prompt,-p,--prompt", options.prompt, "What to ask")->type_name("TEXT")->group(group);
  app.add_option("--prompt-file", options.prompt_file, "Ask what a file holds")->type_name("FILE")->group(group);
  app.add_option("--system", options.system, "System message in front")->type_name("TEXT")->group(group);
  app.add_flag("--raw", options.raw, "No chat template: the model continues the text")->group(group);
  app.add_flag("-i,--interactive", options.interactive, "A session, whatever standard input is")->group(group);
  app.add_flag("--chat", options.chat, "The session remembers what was said")->group(group);
  app.add_option("--input", options.input, "Ask every line of a JSONL file (-: standard input)")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--output", options.output, "Write answers as JSONL; goes on where an earlier run stopped")
      ->type_name("FILE")
      ->group(group);
}

void add_evaluation_options(CLI::App& app, Texts& texts, RunOptions& options) {
  const std::string group = "Scoring";
  app.add_option("--samples", options.samples, "Show the decision on every line of a labelled JSONL file")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--evaluate", options.evaluate, "Score the models alone and routed on a labelled JSONL file")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--expect", texts.expect, "Fields that must be right, as in team,urgency")
      ->type_name("FIELD,...")
      ->group(group);
}

void add_answer_options(CLI::App& app, Texts& texts, RunOptions& options) {
  Request& request = options.request;
  const std::string group = "Answers";
  app.add_option("--max-tokens", request.max_tokens, "Longest answer (256; routed: as the rules say)")
      ->type_name("N")
      ->group(group);
  add_list(app, "--stop", request.stop, "End before this text; as often as needed")->type_name("TEXT")->group(group);
  app.add_flag("--ignore-end-tokens", request.ignore_end_tokens, "Go on to --max-tokens")->group(group);
  app.add_option("--max-length", request.max_length_tokens, "Longest prompt taken, in tokens")
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--length-policy", texts.length_policy, "For longer ones: reject, truncate or segment")
      ->type_name("NAME")
      ->capture_default_str()
      ->group(group);
  app.add_option("--deadline", request.deadline, "Give up after so many seconds (0: never)")
      ->type_name("X")
      ->group(group);
  app.add_option("--logprobs", request.logprobs, "List the N best of every token, with --json")
      ->type_name("N")
      ->group(group);
  app.add_flag("--json", options.json, "One JSON object an answer, on one line")->group(group);
  app.add_flag("--stats", options.stats, "Counters and rates at the end")->group(group);
  app.add_flag("-q,--quiet", options.quiet, "Answers and errors only")->group(group);
  app.add_flag("-v,--verbose", options.verbose, "Say what was loaded and how")->group(group);
}

void add_sampling_options(CLI::App& app, Texts& texts, Sampling& sampling) {
  const std::string group = "Sampling";
  app.add_option("--temperature", sampling.temperature, "0: the most likely token")->type_name("X")->group(group);
  app.add_option("--top-k", sampling.top_k, "Of the K most likely (0: off)")->type_name("K")->group(group);
  app.add_option("--top-p", sampling.top_p, "Of the fewest that reach P together (1: off)")
      ->type_name("P")
      ->group(group);
  app.add_option("--min-p", sampling.min_p, "At least P times as likely as the best (0: off)")
      ->type_name("P")
      ->group(group);
  app.add_option("--repetition-penalty", sampling.repetition_penalty, "Above 1: less of what was there (1: off)")
      ->type_name("X")
      ->group(group);
  add_list(app, "--logit-bias", texts.logit_biases, "Add to a token's logit; as often as needed")
      ->type_name("ID=X")
      ->group(group);
  app.add_option("--seed", sampling.seed, "The same seed gives the same answer")->type_name("N")->group(group);
}

[[noreturn]] void refuse(std::string what, std::string_view fix) {
  throw Error(Code::invalid_argument, std::move(what), fix);
}

ModelOptions& model_named(std::vector<ModelOptions>& models, std::string_view option, const std::string& name) {
  std::vector<std::string> known;
  for (ModelOptions& model : models) {
    if (model.name == name) return model;
    known.push_back(model.name);
  }
  const std::string nearest = loaders::nearest_name(name, known);
  throw Error(Code::not_found, fmt::format("{} names a model {} that was not given", option, loaders::quote(name)),
              nearest.empty() ? "Give it with --model" : fmt::format("The nearest is '{}'", nearest));
}

void add_models(const Texts& texts, std::vector<ModelOptions>& models) {
  if (!texts.laya.empty()) models.push_back({.name = "laya", .path = texts.laya});
  if (!texts.kev.empty()) models.push_back({.name = "kev", .path = texts.kev});
  for (const std::string& text : texts.models) {
    const NamedValue model = split_named(text);
    if (model.name.empty() || model.value.empty()) refuse(fmt::format("--model is '{}'", text), "Give NAME=DIR");
    models.push_back({.name = model.name, .path = model.value});
  }
}

void add_adapter(std::vector<ModelOptions>& models, std::string_view option, const std::string& model_name,
                 const std::string& adapter_name, const std::string& path) {
  if (path.empty()) refuse(fmt::format("{} names no folder", option), "Give the PEFT folder");
  model_named(models, option, model_name).adapters.push_back({.name = adapter_name, .path = path});
}

// "MODEL[:NAME]": the adapter is called as the model unless named.
std::pair<std::string, std::string> model_and_adapter(const std::string& text) {
  const std::size_t at = text.find(':');
  if (at == std::string::npos) return {text, text};
  return {text.substr(0, at), text.substr(at + 1)};
}

void add_adapters(const Texts& texts, std::vector<ModelOptions>& models) {
  if (!texts.laya_lora.empty()) add_adapter(models, "--laya-lora", "laya", "laya", texts.laya_lora);
  if (!texts.kev_lora.empty()) add_adapter(models, "--kev-lora", "kev", "kev", texts.kev_lora);
  for (const std::string& text : texts.adapters) {
    const NamedValue adapter = split_named(text);
    if (adapter.name.empty()) refuse(fmt::format("--lora is '{}'", text), "Give MODEL=DIR or MODEL:NAME=DIR");
    const auto [model, name] = model_and_adapter(adapter.name);
    add_adapter(models, "--lora", model, name, adapter.value);
  }
  for (const std::string& text : texts.adapter_scales) {
    const NamedValue scale = split_named(text);
    const double value = parse_double("--lora-scale", scale.value);
    const auto [model_name, name] = model_and_adapter(scale.name);
    bool found = false;
    for (ModelOptions& model : models) {
      for (AdapterOptions& adapter : model.adapters) {
        if (!scale.name.empty() && (model.name != model_name || adapter.name != name)) continue;
        adapter.scale = value;
        found = true;
      }
    }
    if (!found) refuse(fmt::format("--lora-scale {} meets no adapter", text), "Name one as MODEL:NAME");
  }
}

bool is_on(std::string_view option, std::string_view value) {
  if (value != "on" && value != "off" && value != "true" && value != "false")
    refuse(fmt::format("{} is '{}'", option, value), "Give on or off");
  return value == "on" || value == "true";
}

// Applies "[MODEL=]VALUE" texts: those without a name to every model, then the named ones.
template <class Function>
void for_models(std::vector<ModelOptions>& models, std::string_view option, const std::vector<std::string>& texts,
                Function&& apply) {
  for (const bool named : {false, true}) {
    for (const std::string& text : texts) {
      const NamedValue value = split_named(text);
      if (value.name.empty() == named) continue;
      if (named) {
        apply(model_named(models, option, value.name), value.value);
      } else {
        for (ModelOptions& model : models) apply(model, value.value);
      }
    }
  }
}

void set_model_values(const Texts& texts, std::vector<ModelOptions>& models) {
  for_models(models, "--chat-template", texts.chat_templates,
             [](ModelOptions& model, const std::string& value) { model.chat_template = value; });
  for (const std::string& text : texts.systems) {
    const NamedValue system = split_named(text);
    if (system.name.empty()) refuse(fmt::format("--model-system is '{}'", text), "Give MODEL=TEXT");
    model_named(models, "--model-system", system.name).system = system.value;
  }
  for_models(models, "--weights", texts.weights, [](ModelOptions& model, const std::string& value) {
    model.weights.linear = parse_weight_type("--weights", value);
  });
  for_models(models, "--head", texts.heads, [](ModelOptions& model, const std::string& value) {
    model.weights.head = parse_weight_type("--head", value);
  });
  for_models(models, "--embedding", texts.embeddings, [](ModelOptions& model, const std::string& value) {
    model.weights.embedding = parse_weight_type("--embedding", value);
  });
  for_models(models, "--block", texts.blocks, [](ModelOptions& model, const std::string& value) {
    model.weights.block_size = parse_int("--block", value);
  });
  for_models(models, "--double-quant", texts.double_quants, [](ModelOptions& model, const std::string& value) {
    model.weights.double_quant = is_on("--double-quant", value);
  });
  for_models(models, "--embedding-on-host", texts.host_embeddings, [](ModelOptions& model, const std::string& value) {
    model.embedding_on_host = is_on("--embedding-on-host", value);
  });
}

bool has_model(const RunOptions& options, const std::string& name) {
  return std::any_of(options.engine.models.begin(), options.engine.models.end(),
                     [&](const ModelOptions& model) { return model.name == name; });
}

void choose_mode(const Texts& texts, RunOptions& options) {
  const int asked = (texts.route ? 1 : 0) + (texts.compare ? 1 : 0) + (texts.only.empty() ? 0 : 1);
  if (asked > 1) refuse("--route, --compare and --only exclude each other", "Give one of them");
  const bool pair = has_model(options, options.rules.fast) && has_model(options, options.rules.deep);
  if (!texts.only.empty()) {
    options.only_model = model_named(options.engine.models, "--only", texts.only).name;
  } else if (texts.compare) {
    options.mode = Mode::compare;
  } else if (texts.route || (pair && options.engine.models.size() > 1)) {
    if (!pair)
      refuse(fmt::format("Routing goes from '{}' to '{}', and not both were given", options.rules.fast,
                         options.rules.deep),
             "Give both, or name others in the rules (--rules)");
    options.mode = Mode::route;
  } else if (options.engine.models.size() == 1) {
    options.only_model = options.engine.models.front().name;
  } else if (!options.plan) {
    refuse("Several models were given, and nothing says which one answers",
           "Use --only NAME, --compare, or --rules that name two of them");
  }
  if (options.mode == Mode::route && options.max_tokens_given) {
    options.rules.deep_max_tokens = options.request.max_tokens;
    options.rules.fast_max_tokens = std::min(options.rules.fast_max_tokens, options.request.max_tokens);
  }
  if (options.mode == Mode::route && !options.request.adapter.empty())
    refuse("--adapter does not go with routing, where every model answers with its own", "Use it with --only");
}

void check_sources(const RunOptions& options) {
  const int sources = (options.prompt_given ? 1 : 0) + (options.prompt_file.empty() ? 0 : 1) +
                      (options.input.empty() ? 0 : 1) + (options.interactive ? 1 : 0) +
                      (options.samples.empty() && options.evaluate.empty() ? 0 : 1);
  if (sources > 1)
    refuse("More than one of a prompt, --prompt-file, --input, --evaluate and --interactive was given",
           "Give one of them");
  if (!options.evaluate.empty() && options.expect.empty())
    refuse("--evaluate does not know what is right", "Name the fields of its lines with --expect, as in team,urgency");
  if (!options.evaluate.empty() && options.mode == Mode::compare)
    refuse("--evaluate does not go with --compare", "Score the pair (--route) or one model (--only NAME)");
  if (!options.output.empty() && options.input.empty())
    refuse("--output needs --input", "Use --json and your shell's > for a single answer");
  if (options.raw && !options.system.empty())
    refuse("--system needs the chat template that --raw leaves out", "Put the text in front of the prompt");
}

void finish(const Texts& texts, RunOptions& options) {
  options.engine.budget = parse_bytes("--budget", texts.budget);
  options.engine.device = parse_device("--device", texts.device);
  options.engine.kv_policy = parse_kv_policy("--kv-policy", texts.kv_policy);
  options.engine.kv_type = parse_kv_type("--kv-type", texts.kv_type);
  options.request.length_policy = parse_length_policy("--length-policy", texts.length_policy);
  for (const std::string& text : texts.logit_biases)
    options.request.sampling.logit_bias.push_back(parse_logit_bias("--logit-bias", text));
  if (!texts.rules.empty() && !asks_decisions(options)) options.rules = read_route_rules(texts.rules);
  add_models(texts, options.engine.models);
  if (options.engine.models.empty())
    refuse("No model was given", "Give --laya and --kev, or --model NAME=DIR; --help says more");
  for (std::size_t begin = 0; begin < texts.expect.size();) {
    const std::size_t end = std::min(texts.expect.find(',', begin), texts.expect.size());
    if (end > begin) options.expect.push_back(texts.expect.substr(begin, end - begin));
    begin = end + 1;
  }
  add_adapters(texts, options.engine.models);
  set_model_values(texts, options.engine.models);
  choose_mode(texts, options);
  if (!asks_decisions(options)) return check_sources(options);
  if (options.mode == Mode::compare)
    refuse("--compare does not go with typed questions", "Route them (--route) or ask one model (--only NAME)");
  const bool wished = options.calibrate.accuracy || options.calibrate.escalate;
  if (wished && options.mode == Mode::single && options.only_model == options.decide.rules.deep)
    refuse(fmt::format("'{}' is the deep model, which no threshold leaves", options.only_model),
           "Give the fast model too, or leave --accuracy and --escalate out");
}

}  // namespace

bool read_options(int argc, char** argv, RunOptions& options, int& exit_code) {
  Texts texts;
  DecisionTexts decision_texts;
  CLI::App app("Runs decision models side by side: Laya answers first, Kev takes over what she is unsure of.",
               "engine_run");
  app.footer(kFooter);
  app.get_formatter()->column_width(34);
  app.set_help_flag("-h,--help", "Print this and stop");
  app.set_version_flag("--version", "Duet " DUET_VERSION);
  app.set_config("--config", "", "Read any of these options from a TOML file; the command line wins")
      ->type_name("FILE");
  app.allow_config_extras(CLI::config_extras_mode::error);
  add_model_options(app, texts, options);
  add_routing_options(app, texts);
  add_text_options(app, options);
  add_evaluation_options(app, texts, options);
  add_answer_options(app, texts, options);
  add_sampling_options(app, texts, options.request.sampling);
  add_engine_options(app, texts, options);
  app.require_subcommand(0, 1);
  const CLI::App* decide = add_decide(app, decision_texts, options.decide);
  const CLI::App* calibrate = add_calibrate(app, decision_texts, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {
    exit_code = app.exit(done);
    return false;
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "engine_run: {}\n", error.what());
    exit_code =
        static_cast<int>(error.get_exit_code() == static_cast<int>(CLI::ExitCodes::FileError) ? Code::not_found
                                                                                              : Code::invalid_argument);
    return false;
  }
  options.prompt_given = app.count("--prompt") > 0;
  options.max_tokens_given = app.count("--max-tokens") > 0;
  try {
    if (decide->parsed()) finish_decide(*decide, decision_texts, texts.rules, options);
    if (calibrate->parsed()) finish_calibrate(*calibrate, decision_texts, texts.rules, options);
    finish(texts, options);
  } catch (const Error& error) {
    fmt::print(stderr, "engine_run: {}\n", error.what());
    exit_code = static_cast<int>(error.code());
    return false;
  }
  return true;
}

std::vector<std::string> compared_models(const RunOptions& options) {
  std::vector<std::string> names;
  for (const ModelOptions& model : options.engine.models) names.push_back(model.name);
  std::stable_partition(names.begin(), names.end(),
                        [&](const std::string& name) { return name == options.rules.fast; });
  return names;
}

}  // namespace duet::run
