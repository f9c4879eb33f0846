#include "bench/card_proofs.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <vector>

#include "bench/synthetic_engine.h"
#include "cuda/card.h"
#include "cuda/cuda_backend.h"
#include "cuda/device.h"
#include "duet/error.h"

namespace duet::bench {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kSixGib = std::size_t{6} << 30;
constexpr std::size_t kDisplay = 300 * kMiB;

/// The child that holds the rest of the card.
class FilledCard {
 public:
  explicit FilledCard(std::size_t leave) {
    int to_child[2], from_child[2];
    if (pipe(to_child) != 0 || pipe(from_child) != 0) throw Error(Code::internal, "No pipe to the filling process");
    child_ = fork();
    if (child_ == 0) {
      dup2(to_child[0], STDIN_FILENO);
      dup2(from_child[1], STDOUT_FILENO);
      for (const int end : {to_child[0], to_child[1], from_child[0], from_child[1]}) close(end);
      const std::string bytes = std::to_string(leave);
      execl("/proc/self/exe", "engine_bench", "fill-card", "--leave", bytes.c_str(), static_cast<char*>(nullptr));
      _exit(127);
    }
    close(to_child[0]);
    close(from_child[1]);
    input_ = to_child[1];
    char answer = 0;
    const bool filled = read(from_child[0], &answer, 1) == 1 && answer == 'F';
    close(from_child[0]);
    if (!filled) throw Error(Code::device, "The card could not be filled", "Is another program using it?");
  }
  ~FilledCard() {
    close(input_);
    waitpid(child_, nullptr, 0);
  }
  FilledCard(const FilledCard&) = delete;
  FilledCard& operator=(const FilledCard&) = delete;

 private:
  pid_t child_ = -1;
  int input_ = -1;
};

TokenRequest request_of(int model, std::size_t prompt, int answer, std::uint64_t seed, std::int32_t vocabulary) {
  TokenRequest request;
  request.model = model;
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i < prompt; ++i)
    request.prompt_ids.push_back(static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(vocabulary)));
  request.max_tokens = answer;
  request.ignore_end_tokens = true;
  request.max_length_tokens = 8192;
  return request;
}

struct Measured {
  std::string what;
  std::size_t planned = 0, process = 0, after = 0;
  double load_seconds = 0, seconds = 0;
  int requests = 0;
  Counters counters;
  std::string table;
};

/// `requests` of all models in turn, as many at a time as the engine takes.
Measured prove(const std::string& what, const std::vector<SyntheticModel>& models, const SyntheticOptions& options,
               int requests, KvPolicy policy) {
  const SyntheticEngine engine(models, options);
  Measured measured;
  measured.what = what;
  measured.planned = engine.plan.total_bytes();
  measured.table = table_of(engine.plan);
  measured.load_seconds = engine.load_seconds;
  measured.requests = requests;
  RuntimeOptions runtime_options;
  runtime_options.kv_policy = policy;
  const auto runtime = engine.runtime(runtime_options);
  const auto begin = std::chrono::steady_clock::now();
  measured.process = cuda::process_bytes().value_or(0);
  const auto model_count = static_cast<int>(models.size());
  for (int done = 0; done < requests;) {
    std::vector<Ticket> tickets;
    for (; done < requests && static_cast<int>(tickets.size()) < options.max_sequences; ++done) {
      const int model = done % model_count;
      const std::int32_t vocabulary = engine.sources[static_cast<std::size_t>(model)]->spec().vocabulary;
      const std::size_t prompt = done < model_count ? 2000 : 16 + static_cast<std::size_t>(done * 7 % 90);
      tickets.push_back(runtime->submit(request_of(model, prompt, 8, static_cast<std::uint64_t>(done), vocabulary)));
    }
    for (const Ticket ticket : tickets) {
      const Answer answer = runtime->wait(ticket);
      if (answer.code != Code::ok || answer.tokens.size() != 8)
        throw Error(Code::internal, fmt::format("A request of {} failed: {}", what, answer.message));
    }
  }
  measured.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  measured.after = cuda::process_bytes().value_or(0);
  measured.counters = runtime->counters();
  return measured;
}

/// Throws when plan and card disagree.
void judge(const Measured& m) {
  if (m.process == 0)
    throw Error(Code::device, "The driver does not tell what this process uses of the card, so nothing is proved",
                "Run where nvidia-smi lists processes");
  if (m.process > kSixGib) throw Error(Code::no_room, fmt::format("{}: {} are used, over 6 GiB", m.what, m.process));
  const double off = (static_cast<double>(m.process) - static_cast<double>(m.planned)) / static_cast<double>(m.planned);
  if (off > 0.01 || off < -0.01)
    throw Error(Code::internal, fmt::format("{}: the plan says {} B and the card {} B, {:.2f} % apart", m.what,
                                            m.planned, m.process, 100 * off));
  if (m.after != m.process)
    throw Error(Code::internal, fmt::format("{}: {} B were used at first and {} B after {} requests", m.what, m.process,
                                            m.after, m.requests));
}

std::vector<SyntheticModel> models_of(int count) {
  std::vector<SyntheticModel> models;
  models.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i)
    models.push_back({"qwen2.5-1.5b", static_cast<std::uint64_t>(i + 1), i % 2 == 0 ? 16 : 8});
  return models;
}

/// Most 1.5B models, each its own base, that the plan takes.
int most_models(const SyntheticOptions& options) {
  for (int count = 2;; ++count) {
    try {
      PlanRequest request;
      request.backend = cuda::cuda_facts(options.kv_storage);
      request.budget = options.budget;
      request.kv_tokens = options.kv_tokens;
      request.max_sequences = options.max_sequences;
      request.prefill_chunk_tokens = options.prefill_chunk_tokens;
      request.models = planned_models(models_of(count + 1), options.weights);
      (void)make_plan(request);
    } catch (const Error& error) {
      if (error.code() == Code::no_room) return count;
      throw;
    }
  }
}

void print(const Measured& m) {
  fmt::print("{}\n{}\n", m.what, m.table);
  fmt::print("| | bytes | |\n|---|---|---|\n");
  fmt::print("| planned, context included | {} | {} |\n", grouped_digits(m.planned), human_bytes(m.planned));
  fmt::print("| used by this process (nvidia-smi) | {} | {} |\n", grouped_digits(m.process), human_bytes(m.process));
  fmt::print("| after {} requests | {} | {} |\n", m.requests, grouped_digits(m.after), human_bytes(m.after));
  fmt::print(
      "\n{} requests of {} models in {:.1f} s, loaded in {:.1f} s; {} switches, idle {:.0f} us at the median, "
      "{:.0f} us at p99\n\n",
      m.requests, m.what, m.seconds, m.load_seconds, m.counters.switches, 1e6 * m.counters.switch_p50,
      1e6 * m.counters.switch_p99);
  std::fflush(stdout);
}

nlohmann::json json_of(const Measured& m) {
  return {{"proof", m.what},
          {"planned_bytes", m.planned},
          {"used_bytes", m.process},
          {"used_bytes_after", m.after},
          {"requests", m.requests},
          {"seconds", m.seconds},
          {"load_seconds", m.load_seconds},
          {"switches", m.counters.switches},
          {"switch_p50_seconds", m.counters.switch_p50},
          {"switch_p99_seconds", m.counters.switch_p99}};
}

}  // namespace

int fill_card(unsigned long long leave_bytes) {
  (void)cuda::the_card();
  std::vector<cuda::DeviceMemory> held;
  for (std::size_t piece = std::size_t{1} << 34; piece >= 2 * kMiB;) {
    if (cuda::card_memory().free < leave_bytes + piece) {
      piece /= 2;
      continue;
    }
    held.push_back(cuda::allocate_device(piece));
  }
  std::fputs("F", stdout);
  std::fflush(stdout);
  while (std::fgetc(stdin) != EOF) {
  }
  return 0;
}

void run_six_gib(const SixGibOptions& options) {
  const FilledCard filled(kSixGib - kDisplay);
  SyntheticOptions engine;
  engine.weights = small_card_weights();
  engine.budget = kSixGib - kDisplay;
  engine.kv_tokens = 8192;

  std::vector<Measured> proofs;
  const auto add = [&](const std::string& what, const std::vector<SyntheticModel>& models, int requests,
                       KvPolicy policy = KvPolicy::keep) {
    proofs.push_back(prove(what, models, engine, requests, policy));
    if (!options.json) print(proofs.back());
    judge(proofs.back());
  };
  add("2 x qwen2.5-1.5b", models_of(2), options.requests);
  add("2 x qwen2.5-1.5b, pages cleared on every switch", models_of(2), options.requests / 10, KvPolicy::clear);
  const int most = most_models(engine);
  if (most < 4)
    throw Error(Code::no_room, fmt::format("Only {} models of 1.5B fit beside each other; four were promised", most));
  add(fmt::format("{} x qwen2.5-1.5b", most), models_of(most), options.requests / 10);
  add("qwen3-4b and qwen2.5-1.5b", {{"qwen3-4b", 1, 16}, {"qwen2.5-1.5b", 2, 8}}, options.requests / 10);
  if (!options.json) return;
  nlohmann::json all = nlohmann::json::array();
  for (const Measured& m : proofs) all.push_back(json_of(m));
  fmt::print("{}\n", all.dump());
}

// ---- soak ----

namespace {

constexpr int kHealthy = 0, kSick = 1;

/// A request of the healthy model, named by a number.
TokenRequest healthy_request(std::uint64_t number, std::int32_t vocabulary) {
  std::mt19937_64 random(number * 7919 + 1);
  TokenRequest request =
      request_of(kHealthy, 1 + random() % 600, 1 + static_cast<int>(random() % 24), number, vocabulary);
  if (number % 3 == 0) request.adapter = "none";
  if (number % 2 == 0) {
    request.sampling.temperature = 0.8;
    request.sampling.top_p = 0.95;
    request.sampling.seed = number;
  }
  return request;
}

struct Expected {
  std::vector<std::int32_t> ids;
  std::vector<float> logprobs;
};

Expected expected_of(const Answer& answer) {
  Expected expected;
  for (const GeneratedToken& token : answer.tokens) {
    expected.ids.push_back(token.id);
    expected.logprobs.push_back(token.logprob);
  }
  return expected;
}

}  // namespace

void run_soak(const SoakOptions& options) {
  constexpr std::uint64_t kKinds = 64;
  SyntheticOptions engine_options;
  engine_options.weights = small_card_weights();
  engine_options.kv_tokens =
      8192;  // Nothing in progress is ever preempted: what is computed again has other last bits.
  engine_options.poisoned_seed = 2;
  const SyntheticEngine engine({{"qwen2.5-0.5b", 1, 16}, {"qwen2.5-0.5b", 2, 8}}, engine_options);
  const std::int32_t vocabulary = engine.sources[kHealthy]->spec().vocabulary;

  std::map<std::uint64_t, Expected> expected;
  for (std::uint64_t number = 0; number < kKinds; ++number) {
    const auto quiet = engine.runtime({});  // A fresh one each: nothing is cached.
    const Answer answer = quiet->wait(quiet->submit(healthy_request(number, vocabulary)));
    if (answer.code != Code::ok) throw Error(Code::internal, "A quiet request failed: " + answer.message);
    expected[number] = expected_of(answer);
  }

  const auto runtime = engine.runtime({});
  const auto other = synthetic_adapter(*engine.sources[kHealthy], "qwen2.5-0.5b", 16, 999);
  const std::size_t used = cuda::process_bytes().value_or(0);
  std::mt19937_64 random(options.seed);
  std::uint64_t same = 0, close = 0, cancelled = 0, sick = 0, swaps = 0;
  struct Running {
    Ticket ticket;
    int model;
    std::uint64_t number;
    bool cancelled;
  };
  std::vector<Running> running;
  bool swapped_in = false;
  const auto begin = std::chrono::steady_clock::now();
  const auto over = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > options.minutes * 60;
  };
  const auto settle = [&](const Running& one) {
    const Answer answer = runtime->wait(one.ticket);
    if (answer.code == Code::cancelled && one.cancelled) {
      ++cancelled;
    } else if (one.model == kSick) {
      if (answer.code != Code::non_finite)
        throw Error(Code::internal, "The model with NaN answered: " + answer.message);
      ++sick;
    } else if (answer.code != Code::ok) {
      throw Error(Code::internal, fmt::format("Healthy request {} failed: {}", one.number, answer.message));
    } else {
      const Expected got = expected_of(answer);
      const Expected& want = expected[one.number];
      if (got.ids == want.ids && got.logprobs == want.logprobs) {
        ++same;
      } else if (answer.cached_tokens > 0) {
        ++close;  // Less of the prompt was computed: other kernels, other order of sums.
      } else {
        throw Error(Code::internal, fmt::format("Healthy request {} gave other bits than alone", one.number));
      }
    }
  };
  while (!over()) {
    const int model = random() % 3 == 0 ? kSick : kHealthy;
    const std::uint64_t number = random() % kKinds;
    TokenRequest request = model == kHealthy ? healthy_request(number, vocabulary)
                                             : request_of(kSick, 1 + random() % 300, 8, number, vocabulary);
    running.push_back({runtime->submit(std::move(request)), model, number, false});
    if (random() % 8 == 0 && !running.empty()) {
      Running& victim = running[random() % running.size()];
      victim.cancelled = runtime->cancel(victim.ticket) || victim.cancelled;
    }
    if (random() % 16 == 0) {
      if (swapped_in)
        runtime->drop_adapter(kHealthy, "other");
      else
        runtime->load_adapter(kHealthy, "other", *other, 1.0);
      swapped_in = !swapped_in;
      ++swaps;
    }
    while (running.size() > 12) {
      settle(running.front());
      running.erase(running.begin());
    }
  }
  for (const Running& one : running) settle(one);
  const std::size_t used_at_end = cuda::process_bytes().value_or(0);
  if (used != used_at_end)
    throw Error(Code::internal,
                fmt::format("{} B of the card were used at first and {} B at the end", used, used_at_end));
  if (same == 0 || sick == 0) throw Error(Code::internal, "The soak proved nothing: nothing finished");
  const Counters counters = runtime->counters();
  fmt::print(
      "soak of {:.1f} minutes: {} answers with the bits of a quiet engine, {} from a cached prefix, {} cancelled, {} "
      "of "
      "the model with NaN refused, {} adapter swaps, {} switches (idle {:.0f} us at the median, {:.0f} us at p99), "
      "memory constant at {} B\n",
      options.minutes, same, close, cancelled, sick, swaps, counters.switches, 1e6 * counters.switch_p50,
      1e6 * counters.switch_p99, used);
}

}  // namespace duet::bench
