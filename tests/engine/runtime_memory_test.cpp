#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "duet/error.h"
#include "engine/runtime.h"
#include "tests/support/fake_backend.h"

/// Pages, adapters and their identities over many requests: cases O-05, O-12 and O-27.
namespace duet::test {
namespace {

std::vector<std::int32_t> ids_of(const Answer& answer) {
  std::vector<std::int32_t> ids;
  for (const GeneratedToken& token : answer.tokens) ids.push_back(token.id);
  return ids;
}

struct Engine {  // Plan, device and runtime of one "process".
  explicit Engine(const FakeSetup& setup = {}, const RuntimeOptions& options = {}, const std::string& fallback = "")
      : plan(fake_plan(setup)), backend(plan) {
    std::vector<RuntimeModel> models = fake_models();
    for (RuntimeModel& model : models) model.default_adapter = fallback;
    runtime = std::make_unique<Runtime>(backend, plan, std::move(models), options);
  }
  Answer run(int model, const std::string& adapter, double scale, const std::vector<std::int32_t>& prompt, int tokens) {
    TokenRequest request;
    request.model = model;
    request.adapter = adapter;
    request.adapter_scale = scale;
    request.prompt_ids = prompt;
    request.max_tokens = tokens;
    return runtime->wait(runtime->submit(std::move(request)));
  }

  Plan plan;
  FakeBackend backend;
  std::unique_ptr<Runtime> runtime;
};

Code code_of(const std::function<void()>& act, std::string* text = nullptr) {
  try {
    act();
  } catch (const Error& error) {
    if (text != nullptr) *text = error.what();
    return error.code();
  }
  return Code::ok;
}

// ---- O-05: pages are reused for the same identity only ----

void reuse_follows_identity(std::int64_t kv_tokens) {
  SCOPED_TRACE("KV tokens " + std::to_string(kv_tokens));
  Engine engine({.kv_tokens = kv_tokens, .adapter_slots = 3});
  engine.runtime->load_adapter(kKev, "A", FakeAdapter("content of A"), 1.0);
  engine.runtime->load_adapter(kKev, "B", FakeAdapter("content of B"), 1.0);
  engine.runtime->load_adapter(kKev, "A again", FakeAdapter("content of A"), 1.0);
  const auto prompt = fake_prompt(70, 5);  // Four whole pages and six tokens.
  struct Step {
    const char* adapter;
    double scale;
    const char* content;
    int cached;  // With room for everything.
  };
  const bool roomy = kv_tokens >= 1024;
  for (const Step& step :
       {Step{"A", 1.0, "content of A", 0}, Step{"B", 1.0, "content of B", 0}, Step{"none", 1.0, "", 0},
        Step{"A", 0.5, "content of A", 0}, Step{"A", 1.0, "content of A", 64}, Step{"A again", 1.0, "content of A", 64},
        Step{"A again", 0.5, "content of A", 64}, Step{"none", 1.0, "", 64}}) {
    SCOPED_TRACE(std::string(step.adapter) + " at " + std::to_string(step.scale));
    const Answer answer = engine.run(kKev, step.adapter, step.scale, prompt, 8);
    ASSERT_EQ(answer.code, Code::ok) << answer.message;
    EXPECT_EQ(ids_of(answer), fake_answer(1, step.content, static_cast<float>(step.scale), prompt, 8));
    EXPECT_TRUE(answer.cached_tokens == step.cached || (!roomy && step.cached > 0)) << answer.cached_tokens;
  }
  EXPECT_EQ(engine.runtime->counters().evicted_pages > 0, !roomy);
}

TEST(PrefixReuse, FollowsModelAdapterContentScaleAndTokens) { reuse_follows_identity(1024); }
TEST(PrefixReuse, FollowsIdentityWhilePagesAreEvicted) { reuse_follows_identity(112); }

TEST(PrefixReuse, AnotherAdapterUnderAnOldNameFindsNothing) {
  Engine engine;
  const auto prompt = fake_prompt(70, 5);
  engine.runtime->load_adapter(kKev, "current", FakeAdapter("monday"), 1.0);
  engine.run(kKev, "current", 1.0, prompt, 4);
  engine.runtime->drop_adapter(kKev, "current");
  engine.runtime->load_adapter(kKev, "current", FakeAdapter("tuesday"), 1.0);
  const Answer other = engine.run(kKev, "current", 1.0, prompt, 4);
  EXPECT_EQ(other.cached_tokens, 0);
  EXPECT_EQ(ids_of(other), fake_answer(1, "tuesday", 1.0F, prompt, 4));
  engine.runtime->drop_adapter(kKev, "current");
  engine.runtime->load_adapter(kKev, "current", FakeAdapter("monday"), 1.0);
  EXPECT_EQ(engine.run(kKev, "current", 1.0, prompt, 4).cached_tokens, 64) << "the content counts";
  engine.runtime->drop_adapter(kKev, "current");
  engine.runtime->load_adapter(kKev, "current", FakeAdapter("monday"), 2.0);
  EXPECT_EQ(engine.run(kKev, "current", 1.0, prompt, 4).cached_tokens, 0) << "and the scale it was loaded with";
  EXPECT_EQ(engine.run(kKev, "current", 0.5, prompt, 4).cached_tokens, 64) << "times the request's";
}

TEST(PrefixReuse, ModelsOfOneBaseShareAndOthersDoNot) {
  Engine engine;
  const auto prompt = fake_prompt(70, 6);  // Two whole pages of laya and twin.
  engine.run(kLaya, "", 1.0, prompt, 4);
  EXPECT_EQ(engine.run(kKev, "", 1.0, prompt, 4).cached_tokens, 0);
  const Answer twin = engine.run(kTwin, "", 1.0, prompt, 4);
  EXPECT_EQ(twin.cached_tokens, 64);
  EXPECT_EQ(ids_of(twin), fake_answer(0, "", 1.0F, prompt, 4));
}

TEST(PrefixReuse, CoversTheAnswerOfAnEarlierTurn) {
  Engine engine;
  auto prompt = fake_prompt(40, 7);
  const Answer first = engine.run(kKev, "", 1.0, prompt, 40);
  const auto answer = ids_of(first);
  prompt.insert(prompt.end(), answer.begin(), answer.end());
  const auto more = fake_prompt(10, 8);
  prompt.insert(prompt.end(), more.begin(), more.end());
  const Answer second = engine.run(kKev, "", 1.0, prompt, 5);
  EXPECT_EQ(second.cached_tokens, 64) << "79 tokens were computed: four whole pages";
  EXPECT_EQ(ids_of(second), fake_answer(1, "", 1.0F, prompt, 5));
}

TEST(PrefixReuse, TheLastTokenIsAlwaysComputed) {
  Engine engine;
  const auto prompt = fake_prompt(64, 9);
  const auto want = fake_answer(1, "", 1.0F, prompt, 5);
  EXPECT_EQ(ids_of(engine.run(kKev, "", 1.0, prompt, 5)), want);
  const Answer again = engine.run(kKev, "", 1.0, prompt, 5);
  EXPECT_EQ(again.cached_tokens, 48);
  EXPECT_EQ(ids_of(again), want);
}

TEST(PrefixReuse, WorksBetweenRequestsInProgress) {
  Engine engine({.max_sequences = 4});
  const auto shared = fake_prompt(64, 10);
  std::vector<Ticket> tickets;
  for (std::int32_t i = 0; i < 8; ++i) {
    TokenRequest request;
    request.model = kKev;
    request.prompt_ids = shared;
    request.prompt_ids.push_back(i);
    request.max_tokens = 30;
    tickets.push_back(engine.runtime->submit(std::move(request)));
  }
  for (std::int32_t i = 0; i < 8; ++i) {
    auto prompt = shared;
    prompt.push_back(i);
    EXPECT_EQ(ids_of(engine.runtime->wait(tickets[static_cast<std::size_t>(i)])), fake_answer(1, "", 1.0F, prompt, 30));
  }
  const Counters counters = engine.runtime->counters();
  EXPECT_EQ(counters.free_pages, counters.total_pages);
}

// ---- O-12: nothing of a request outlives it ----

TEST(Requests, AnAnswerDoesNotDependOnWhatRanBefore) {
  const auto a = fake_prompt(100, 11);
  const auto b = fake_prompt(90, 12);
  const auto want = fake_answer(1, "", 1.0F, b, 20);
  for (const int ending : {0, 1, 2, 3}) {  // Finished, cancelled in prefill, in decode, failed.
    SCOPED_TRACE(ending);
    Engine engine({.kv_tokens = 128});  // Eight pages: b reuses a's.
    std::mutex mutex;
    std::condition_variable changed;
    bool reached = false, go_on = false;
    const int stop_at = ending == 1 ? 24 : 105;
    engine.backend.before_step = [&](int, const StepSequence& sequence) {
      if (ending != 1 && ending != 2) return;
      if (sequence.first_position < stop_at) return;
      std::unique_lock lock(mutex);
      reached = true;
      changed.notify_all();
      changed.wait(lock, [&] { return go_on; });
    };
    bool spoils = ending == 3;
    engine.backend.bad_layer = [&](int, const StepSequence& sequence) -> std::optional<int> {
      if (!spoils || sequence.first_position != 103) return std::nullopt;
      spoils = false;
      return 0;
    };
    TokenRequest request;
    request.model = kKev;
    request.prompt_ids = a;
    request.max_tokens = 20;
    const Ticket first = engine.runtime->submit(request);
    if (ending == 1 || ending == 2) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return reached; });
      EXPECT_TRUE(engine.runtime->cancel(first));
      go_on = true;
      changed.notify_all();
    }
    const Code want_code = ending == 0 ? Code::ok : ending == 3 ? Code::non_finite : Code::cancelled;
    EXPECT_EQ(engine.runtime->wait(first).code, want_code);
    EXPECT_EQ(ids_of(engine.run(kKev, "", 1.0, b, 20)), want);
  }
}

// ---- adapters while running ----

TEST(Adapters, AreChosenByNameAndRefusedWithASentence) {
  Engine engine({.adapter_slots = 2}, {}, "house style");
  std::string text;
  EXPECT_EQ(engine.run(kLaya, "", 1.0, {1}, 3).code, Code::not_found) << "the default is not there yet";
  engine.runtime->load_adapter(kLaya, "house style", FakeAdapter("h"), 1.0);
  Answer answer = engine.run(kLaya, "", 1.0, {1}, 3);
  EXPECT_EQ(answer.adapter, "house style");
  EXPECT_EQ(ids_of(answer), fake_answer(0, "h", 1.0F, {1}, 3));
  answer = engine.run(kLaya, "none", 1.0, {1}, 3);
  EXPECT_EQ(answer.adapter, "none");
  EXPECT_EQ(ids_of(answer), fake_answer(0, "", 1.0F, {1}, 3));
  EXPECT_EQ(engine.run(kKev, "", 1.0, {1}, 3).code, Code::not_found) << "each model has slots of its own";

  const auto load = [&](const std::string& name, const FakeAdapter& adapter, double scale = 1.0) {
    return code_of([&] { engine.runtime->load_adapter(kLaya, name, adapter, scale); }, &text);
  };
  EXPECT_EQ(load("house style", FakeAdapter("x")), Code::invalid_argument);
  EXPECT_EQ(load("none", FakeAdapter("x")), Code::invalid_argument);
  EXPECT_EQ(load("", FakeAdapter("x")), Code::invalid_argument);
  EXPECT_EQ(load("x", FakeAdapter("x"), std::numeric_limits<double>::infinity()), Code::invalid_argument);
  EXPECT_EQ(load("large", FakeAdapter("x", 1001)), Code::no_room);
  EXPECT_NE(text.find("takes 1001 bytes and a slot of model \"laya\" has 1000"), std::string::npos) << text;
  EXPECT_EQ(load("wide", FakeAdapter("x", 10, 9)), Code::no_room);
  EXPECT_EQ(load("second", FakeAdapter("x")), Code::ok);
  EXPECT_EQ(load("third", FakeAdapter("x")), Code::no_room);
  EXPECT_NE(text.find("model \"laya\" has 2, all taken"), std::string::npos) << text;
  EXPECT_EQ(code_of([&] { engine.runtime->drop_adapter(kLaya, "third"); }), Code::not_found);
  EXPECT_EQ(code_of([&] { engine.runtime->drop_adapter(7, "third"); }), Code::not_found);
}

TEST(Adapters, ALoadThatFailsLeavesTheSlotFree) {
  Engine engine({.adapter_slots = 1});
  EXPECT_THROW(engine.runtime->load_adapter(kKev, "x", FakeAdapter("broken"), 1.0), std::runtime_error);
  EXPECT_EQ(engine.run(kKev, "x", 1.0, {1}, 3).code, Code::not_found);
  EXPECT_NO_THROW(engine.runtime->load_adapter(kKev, "x", FakeAdapter("whole"), 1.0));
  EXPECT_EQ(engine.run(kKev, "x", 1.0, {1}, 3).code, Code::ok);
}

TEST(Adapters, DoraKeepsTheScaleItWasLoadedWith) {
  Engine engine;
  FakeAdapter adapter("dora");
  adapter.mutable_spec().modules.push_back({.dora = true});
  engine.runtime->load_adapter(kKev, "d", adapter, 0.5);
  EXPECT_EQ(ids_of(engine.run(kKev, "d", 1.0, {1}, 3)), fake_answer(1, "dora", 0.5F, {1}, 3));
  EXPECT_EQ(engine.run(kKev, "d", 0.9, {1}, 3).code, Code::unsupported);
}

TEST(Adapters, AreNotDroppedWhileARequestWantsThem) {
  Engine engine({.max_sequences = 1, .adapter_slots = 1});
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
  std::atomic<int> steps = 0;
  engine.backend.before_step = [&](int, const StepSequence&) {
    ++steps;
    std::unique_lock lock(mutex);
    changed.wait_for(lock, std::chrono::milliseconds(1), [&] { return open; });
  };
  engine.runtime->load_adapter(kKev, "x", FakeAdapter("x"), 1.0);
  TokenRequest request;
  request.model = kKev;
  request.adapter = "x";
  request.prompt_ids = {1, 2};
  request.max_tokens = 50;
  const Ticket running = engine.runtime->submit(request);
  const Ticket waiting = engine.runtime->submit(request);
  while (steps == 0) std::this_thread::yield();
  std::string text;
  EXPECT_EQ(code_of([&] { engine.runtime->drop_adapter(kKev, "x"); }, &text), Code::invalid_argument);
  EXPECT_NE(text.find("in use by 2 requests"), std::string::npos) << text;
  EXPECT_TRUE(engine.runtime->cancel(running));
  engine.runtime->wait(running);
  EXPECT_EQ(code_of([&] { engine.runtime->drop_adapter(kKev, "x"); }), Code::invalid_argument) << "one waits for it";
  {
    const std::lock_guard lock(mutex);
    open = true;
  }
  EXPECT_EQ(ids_of(engine.runtime->wait(waiting)), fake_answer(1, "x", 1.0F, {1, 2}, 50));
  EXPECT_NO_THROW(engine.runtime->drop_adapter(kKev, "x"));
}

// ---- O-27: a thousand switches ----

void a_thousand_switches(KvPolicy policy) {
  Engine engine({.kv_tokens = 512, .max_sequences = 3, .adapter_slots = 2}, {.kv_policy = policy});
  Runtime& runtime = *engine.runtime;
  const Counters at_start = runtime.counters();
  EXPECT_EQ(at_start.free_pages, at_start.total_pages);
  const auto first_prompt = fake_prompt(70, 1);
  const Answer first = engine.run(kLaya, "", 1.0, first_prompt, 20);
  int loads = 0;
  for (int i = 0; i < 1000; ++i) {
    const int model = i % 2 == 0 ? kKev : kLaya;
    const bool swaps = i % 5 == 0;
    if (swaps) {
      runtime.load_adapter(model, "passing", FakeAdapter("content " + std::to_string(i)), 1.0);
      ++loads;
    }
    TokenRequest request;
    request.model = model;
    request.adapter = swaps ? "passing" : "";
    request.prompt_ids = fake_prompt(20 + i % 50, static_cast<std::uint64_t>(i % 13));
    request.max_tokens = 5 + i % 7;
    const Ticket ticket = runtime.submit(request);
    if (i % 7 == 0) runtime.cancel(ticket);
    const Answer answer = runtime.wait(ticket);
    if (answer.code == Code::ok) {
      const std::string content = swaps ? "content " + std::to_string(i) : "";
      ASSERT_EQ(ids_of(answer),
                fake_answer(model == kKev ? 1 : 0, content, 1.0F, request.prompt_ids, request.max_tokens))
          << i;
    } else {
      ASSERT_EQ(answer.code, Code::cancelled) << answer.message;
    }
    if (swaps) runtime.drop_adapter(model, "passing");
  }
  const Answer last = engine.run(kLaya, "", 1.0, first_prompt, 20);
  EXPECT_EQ(ids_of(first), ids_of(last));
  EXPECT_EQ(loads, 200);
  const Counters at_end = runtime.counters();
  EXPECT_EQ(at_end.requests, 1002U);
  EXPECT_EQ(at_end.finished + at_end.cancelled, 1002U);
  EXPECT_EQ(at_end.failed, 0U);
  EXPECT_EQ(at_end.total_pages, at_start.total_pages);
  EXPECT_EQ(at_end.free_pages, at_start.free_pages);
  EXPECT_EQ(at_end.active_sequences, 0);
  EXPECT_EQ(at_end.waiting, 0);
  EXPECT_GT(at_end.switches, 700U);
  EXPECT_NO_THROW(runtime.load_adapter(kKev, "a", FakeAdapter("a"), 1.0));
  EXPECT_NO_THROW(runtime.load_adapter(kKev, "b", FakeAdapter("b"), 1.0)) << "all slots are free again";
}

TEST(ThousandSwitches, LeaveNothingBehindWithPolicyKeep) { a_thousand_switches(KvPolicy::keep); }
TEST(ThousandSwitches, LeaveNothingBehindWithPolicyClear) { a_thousand_switches(KvPolicy::clear); }

TEST(ThousandSwitches, ManyThreadsOnASmallPool) {
  // Everything at once: four clients, three models, adapters, cancels, preemption. Answers must not notice.
  Engine engine({.kv_tokens = 256, .max_sequences = 4, .adapter_slots = 2});
  Runtime& runtime = *engine.runtime;
  runtime.load_adapter(kKev, "x", FakeAdapter("x"), 1.0);
  std::vector<std::thread> clients;
  for (int client = 0; client < 4; ++client)
    clients.emplace_back([&runtime, client] {
      for (int i = 0; i < 100; ++i) {
        TokenRequest request;
        request.model = (client + i) % 3;
        request.adapter = request.model == kKev && i % 2 == 0 ? "x" : "";
        request.prompt_ids = fake_prompt(10 + (i * 7) % 90, static_cast<std::uint64_t>(i % 9));
        request.max_tokens = 10 + i % 60;
        request.priority = client % 2;
        const Ticket ticket = runtime.submit(request);
        if (i % 6 == 5) runtime.cancel(ticket);
        if (i % 10 == 0) (void)runtime.counters();
        const Answer answer = runtime.wait(ticket);
        if (answer.code == Code::cancelled) continue;
        ASSERT_EQ(answer.code, Code::ok) << answer.message;
        ASSERT_EQ(ids_of(answer), fake_answer(request.model == kKev ? 1 : 0, request.adapter, 1.0F, request.prompt_ids,
                                              request.max_tokens));
      }
    });
  std::thread swapper([&runtime] {
    for (int i = 0; i < 30; ++i) {
      runtime.load_adapter(kLaya, "passing", FakeAdapter("p" + std::to_string(i)), 1.0);
      runtime.drop_adapter(kLaya, "passing");
    }
  });
  for (std::thread& client : clients) client.join();
  swapper.join();
  const Counters counters = runtime.counters();
  EXPECT_EQ(counters.free_pages, counters.total_pages);
  EXPECT_EQ(counters.active_sequences, 0);
  EXPECT_LE(counters.most_passed_over, 8);
  EXPECT_EQ(counters.finished + counters.cancelled, 400U);
}

}  // namespace
}  // namespace duet::test
