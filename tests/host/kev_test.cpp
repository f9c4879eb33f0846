#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/decision_answer.h"
#include "engine/decision_text.h"
#include "engine/kev_rows.h"
#include "engine/pointer_head.h"
#include "loaders/decision_json.h"
#include "loaders/json_value.h"
#include "loaders/kev_checkpoint.h"
#include "loaders/loaders.h"
#include "loaders/tokenizer_json.h"
#include "tests/host/step_runner.h"
#include "tests/loaders/expect_error.h"
#include "tests/support/compare.h"
#include "tests/support/test_data.h"
#include "tests/tokenizers/tokenizer_support.h"

// Tiny Kev checkpoints in the published layout against transformers, PEFT and torch (tests/golden/kev.py): rows, hidden
// rows, logits and answers.
namespace duet::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Rows = std::vector<std::vector<float>>;

constexpr int kRoomTokens = 4096;

fs::path kev_directory() { return golden_directory() / "kev"; }

struct Names {
  std::string folder;      // Under tests/golden/data/kev.
  std::string kev;         // The folder of the head in it.
  std::string shown = {};  // As a test's name.
};

/// A question's row and everything that hangs on it.
struct Asked {
  Question question;
  KevRow row;
};

/// A checkpoint opened on the host, as the engine opens it.
class Kev {
 public:
  explicit Kev(const Names& names) : folder_(kev_directory() / names.folder), kev_(folder_ / names.kev) {
    golden_text_ = read_file(folder_ / "golden.json");
    golden_ = Json::parse(golden_text_);
    const bool full = golden_["base"].is_null();
    const fs::path base = full ? kev_ : folder_ / golden_["base"].get<std::string>();
    if (golden_.contains("same_as")) {
      golden_text_ = read_file(folder_ / golden_["same_as"].get<std::string>());
      golden_ = Json::parse(golden_text_);
    }
    source_ = loaders::open_checkpoint(base, {});
    checkpoint_ = loaders::read_kev_checkpoint(kev_, report_);
    loaders::check_kev_base(checkpoint_, source_->spec(), source_->name());
    tokenizer_ = loaders::load_kev_tokenizer(base, kev_, report_);
    tokens_ = kev_tokens(*tokenizer_, base.string());
    budget_ = kev_budget(source_->spec().max_position_tokens);
    if (checkpoint_.weights == loaders::KevWeights::lora)
      adapter_ = loaders::open_adapter(kev_, source_->spec(), source_->name());
    runner_ = make_runner();
  }

  const Json& golden() const { return golden_; }
  const PointerHead& head() const { return checkpoint_.head; }
  const loaders::KevCheckpoint& checkpoint() const { return checkpoint_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const KevTokens& tokens() const { return tokens_; }
  const KevBudget& budget() const { return budget_; }
  const std::vector<std::string>& report() const { return report_; }
  StepRunner& runner() { return *runner_; }
  // How far a logit may be from the reference's, whose own float32 noise the golden data names (1e-5 to 8e-5, against
  // float64); ours is of the same size. A probability moves by at most half of what logits do, over the temperature.
  double logit_bound() const { return 2.5 * golden_["float64_moves_logits_by"].get<double>(); }
  double probability_bound() const {
    return std::max(1e-5, golden_["float64_moves_logits_by"].get<double>() / (2 * head().temperature));
  }
  std::size_t hidden() const { return static_cast<std::size_t>(source_->spec().hidden); }
  std::int64_t tokens_per_page() const { return runner_->plan.models[0].tokens_per_page; }
  int slot() const { return adapter_ ? 0 : -1; }
  /// Of the sequence `index` of a step; -1 where the model has no recurrent state.
  int state_slot(std::size_t index) const {
    return runner_->plan.models[0].state_slots.empty() ? -1 : static_cast<int>(index);
  }

  std::unique_ptr<StepRunner> make_runner() const {
    auto runner = std::make_unique<StepRunner>(
        *source_, RunnerOptions{.chunk_tokens = 64, .max_sequences = 8, .kv_tokens = kRoomTokens});
    if (adapter_) runner->backend->load_adapter(0, 0, *adapter_, 1.0F);
    return runner;
  }

  /// The state and the questions of a golden case, numbers as they are spelt there.
  DecisionProblem problem(std::size_t index) const {
    const JsonValue root = loaders::parse_json_value(golden_text_, "golden.json");
    JsonValue one = root.find("cases")->items.at(index);
    JsonValue questions = *one.find("questions");
    DecisionProblem problem{.state = *one.find("state"), .questions = {}};
    for (std::size_t i = 0; i < questions.items.size(); ++i) {
      leave_out_other_criteria(questions.items[i]);
      problem.questions.push_back(loaders::question_from(questions.keys[i], questions.items[i], "golden"));
    }
    return problem;
  }

  std::vector<std::int32_t> state_ids(const JsonValue& state) const {
    return kev_state_ids(*tokenizer_, tokens_, budget_, state);
  }
  KevRow row(const Question& question, std::size_t state_tokens) const {
    return kev_row(*tokenizer_, tokens_, budget_, question, static_cast<std::int64_t>(state_tokens));
  }

  /// Rows at `wanted` (ascending, from `from` on) of a sequence whose tokens before `from` are in the pages.
  std::vector<float> run(StepRunner& runner, const std::vector<std::int32_t>& ids, std::size_t from,
                         const std::vector<std::int32_t>& pages, const std::vector<int>& wanted, std::size_t chunk,
                         int slot, std::size_t index = 0) const {
    std::vector<float> rows(wanted.size() * hidden(), std::numeric_limits<float>::quiet_NaN());
    std::size_t written = 0;
    for (std::size_t done = from; done < ids.size(); done += chunk) {
      const std::size_t count = std::min(chunk, ids.size() - done);
      std::vector<int> here;
      for (const int position : wanted)
        if (position >= static_cast<int>(done) && position < static_cast<int>(done + count))
          here.push_back(position - static_cast<int>(done));
      StepSequence sequence;
      sequence.tokens = std::span(ids).subspan(done, count);
      sequence.first_position = static_cast<std::int64_t>(done);
      sequence.pages = pages, sequence.adapter_slot = slot, sequence.state_slot = state_slot(index);
      sequence.hidden_rows = here, sequence.hidden = rows.data() + written * hidden();
      EXPECT_TRUE(runner.backend->prefill(0, sequence).finite);
      written += here.size();
    }
    return rows;
  }

  /// The rows that the head reads, closes first, of state and branch as one row.
  std::vector<float> whole_row(const std::vector<std::int32_t>& ids, const KevRow& row, std::size_t chunk = 64,
                               bool with_adapter = true) {
    return run(*runner_, ids, 0, runner_->pages(0, static_cast<std::int64_t>(ids.size())), wanted_of(row), chunk,
               with_adapter ? slot() : -1);
  }

  static std::vector<int> wanted_of(const KevRow& row) {
    std::vector<int> wanted = row.closes;
    wanted.push_back(row.decide);
    return wanted;
  }

  std::vector<float> logits(const PointerHead& head, std::span<const float> rows) const {
    std::vector<float> result(rows.size() / hidden() - 1);
    pointer_logits(head, rows.last(hidden()), rows.first(rows.size() - hidden()), result);
    return result;
  }
  std::vector<double> probabilities(const PointerHead& head, std::span<const float> rows) const {
    return option_probabilities(logits(head, rows), head.temperature, "kev");
  }

 private:
  /// The reference ignores other keys than true and false; Duet refuses them.
  static void leave_out_other_criteria(JsonValue& question) {
    if (question.find("type")->text != "noul") return;
    const auto at = std::find(question.keys.begin(), question.keys.end(), "criteria");
    if (at == question.keys.end()) return;
    JsonValue& criteria = question.items[static_cast<std::size_t>(at - question.keys.begin())];
    for (std::size_t i = criteria.keys.size(); i-- > 0;) {
      if (criteria.keys[i] == "true" || criteria.keys[i] == "false") continue;
      criteria.keys.erase(criteria.keys.begin() + static_cast<std::ptrdiff_t>(i));
      criteria.items.erase(criteria.items.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  fs::path folder_, kev_;
  std::string golden_text_;
  Json golden_;
  std::shared_ptr<const WeightSource> source_;
  std::vector<std::string> report_;
  loaders::KevCheckpoint checkpoint_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  KevTokens tokens_;
  KevBudget budget_;
  std::unique_ptr<AdapterSource> adapter_;
  std::unique_ptr<StepRunner> runner_;
};

std::vector<std::int32_t> joined(std::vector<std::int32_t> state, const std::vector<std::int32_t>& branch) {
  state.insert(state.end(), branch.begin(), branch.end());
  return state;
}

/// Of the reference's row, ids as they stand there.
KevRow row_of(const Json& golden_row) {
  return {.branch_ids = golden_row["branch_ids"].get<std::vector<std::int32_t>>(),
          .decide = golden_row["decide"].get<int>(),
          .closes = golden_row["closes"].get<std::vector<int>>()};
}

/// The reference finds added tokens that are not spelt <|like this|> in a caller's text; those that structure a chat
/// are text to Duet.
bool spells_a_control_token(const Json& json) {
  const std::string text = json.dump();
  constexpr std::array kSpellings = {"<think>", "</think>", "<tool_call>", "</tool_call>"};
  return std::any_of(kSpellings.begin(), kSpellings.end(),
                     [&](const char* token) { return text.find(token) != std::string::npos; });
}

std::vector<double> doubles(const Json& list) { return list.get<std::vector<double>>(); }

void expect_near(std::span<const double> got, const std::vector<double>& want, double bound) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], bound);
}

/// Every number of an answer. With `slack` 0: from the reference's own probabilities, so that only rounding is ours.
void expect_answer(const Question& question, const std::vector<double>& p, const Json& want, double slack) {
  const auto near = [&](double value, const Json& number) {
    EXPECT_NEAR(four_decimals(value), number.get<double>(), slack);
  };
  EXPECT_EQ(want["type"].get<std::string>(), name_of(question.kind));
  if (question.kind == QuestionKind::noul) return near(p[1], want["noul"]);
  const Confidences confidences = confidences_of(p);
  if (question.kind == QuestionKind::choice) {
    EXPECT_EQ(question.options[most_probable(p)].label, want["choice"].get<std::string>());
    near(confidences.linear, want["confidence"]);
  } else {
    near(mean_level(p), want["score"]);
    near(confidences.spread, want["confidence"]);
  }
  ASSERT_EQ(want["probabilities"].size(), p.size());
  for (std::size_t i = 0; i < p.size(); ++i) {
    const std::string& label = question.options[i].label;
    EXPECT_EQ(std::next(want["probabilities"].begin(), static_cast<std::ptrdiff_t>(i)).key(), label);
    near(p[i], want["probabilities"][label]);
    if (question.kind == QuestionKind::score) {
      EXPECT_EQ(want["legend"][label].get<std::string>(), kev_option_text(question, i));
    }
  }
}

// ---- against the reference ----

class KevGolden : public testing::TestWithParam<Names> {};

TEST_P(KevGolden, RowsLogitsAndAnswersAreTheReferences) {
  Kev kev(GetParam());
  const Json& golden = kev.golden();
  const Json& markers = golden["markers"];
  EXPECT_EQ(kev.tokens().state, markers["state"].get<int>());
  EXPECT_EQ(kev.tokens().question, markers["question"].get<int>());
  EXPECT_EQ(kev.tokens().option, markers["option"].get<int>());
  EXPECT_EQ(kev.tokens().option_end, markers["option_end"].get<int>());
  EXPECT_EQ(kev.tokens().decide, markers["decide"].get<int>());
  EXPECT_EQ(kev.head().dims, golden["head_dim"].get<int>());
  EXPECT_DOUBLE_EQ(kev.head().temperature, golden["temperature"].get<double>());

  double worst_logit = 0, worst_p = 0;
  for (std::size_t c = 0; c < golden["cases"].size(); ++c) {
    const Json& one = golden["cases"][c];
    SCOPED_TRACE(one["name"].get<std::string>());
    const DecisionProblem problem = kev.problem(c);
    ASSERT_EQ(problem.questions.size(), one["rows"].size());
    EXPECT_EQ(kev_text(problem.state), one["state_text"].get<std::string>());
    const auto golden_state = one["state_ids"].get<std::vector<std::int32_t>>();
    const std::vector<std::int32_t> state = kev.state_ids(problem.state);
    const bool state_differs = spells_a_control_token(one["state"]);
    EXPECT_EQ(state == golden_state, !state_differs);
    std::size_t input_tokens = state.size();
    for (std::size_t i = 0; i < problem.questions.size(); ++i) {
      const Question& question = problem.questions[i];
      SCOPED_TRACE(question.name);
      const Json& want = one["rows"][i];
      const KevRow golden_row = row_of(want);
      const KevRow row = kev.row(question, state.size());
      input_tokens += row.branch_ids.size();
      if (spells_a_control_token(one["questions"][question.name])) {
        EXPECT_NE(row.branch_ids, golden_row.branch_ids);
      } else {
        EXPECT_EQ(row.branch_ids, golden_row.branch_ids);
        if (!state_differs) {
          EXPECT_EQ(row.decide, golden_row.decide);
          EXPECT_EQ(row.closes, golden_row.closes);
        }
      }

      // What comes behind the ids is compared with the reference's ids, whatever ours were.
      const std::vector<float> rows = kev.whole_row(joined(golden_state, golden_row.branch_ids), golden_row);
      const std::vector<float> logits = kev.logits(kev.head(), rows);
      const std::vector<double> p = kev.probabilities(kev.head(), rows);
      const std::vector<double> golden_logits = doubles(want["logits"]), golden_p = doubles(want["probabilities"]);
      ASSERT_EQ(logits.size(), golden_logits.size());
      for (std::size_t k = 0; k < logits.size(); ++k) {
        worst_logit = std::max(worst_logit, std::abs(logits[k] - golden_logits[k]));
        worst_p = std::max(worst_p, std::abs(p[k] - golden_p[k]));
        EXPECT_NEAR(logits[k], golden_logits[k], kev.logit_bound());
      }
      expect_near(p, golden_p, kev.probability_bound());
      expect_answer(question, golden_p, one["answers"][question.name], 0);
      expect_answer(question, p, one["answers"][question.name], 2e-4);
    }
    if (!spells_a_control_token(one)) {
      EXPECT_EQ(input_tokens, one["usage"]["input_tokens"].get<std::size_t>());
    }
  }
  RecordProperty("worst_logit", std::to_string(worst_logit));
  RecordProperty("worst_probability", std::to_string(worst_p));
}

TEST_P(KevGolden, HiddenRowsAreTheReferences) {
  Kev kev(GetParam());
  const Json& hidden = kev.golden()["hidden"];
  ASSERT_EQ(hidden["case"], kev.golden()["cases"][0]["name"]);
  const DecisionProblem problem = kev.problem(0);
  const std::vector<std::int32_t> state = kev.state_ids(problem.state);
  const KevRow row = kev.row(problem.questions[0], state.size());
  ASSERT_EQ(Kev::wanted_of(row), hidden["positions"].get<std::vector<int>>());
  std::vector<float> want;
  for (const Json& one : hidden["rows"])
    for (const Json& value : one) want.push_back(value.get<float>());
  EXPECT_TRUE(all_within_relative(kev.whole_row(joined(state, row.branch_ids), row), want, 2e-5));
}

/// A head whose two halves are exchanged answers otherwise, and as the reference's does.
TEST_P(KevGolden, ASwappedHeadAnswersAsTheReferencesSwappedHead) {
  Kev kev(GetParam());
  const DecisionProblem problem = kev.problem(0);
  const std::vector<std::int32_t> state = kev.state_ids(problem.state);
  const KevRow row = kev.row(problem.questions[0], state.size());
  const std::vector<float> rows = kev.whole_row(joined(state, row.branch_ids), row);
  PointerHead swapped = kev.head();
  std::swap(swapped.query_weight, swapped.key_weight);
  std::swap(swapped.query_bias, swapped.key_bias);
  const std::vector<double> want = doubles(kev.golden()["swapped"]["probabilities"]);
  const std::vector<double> got = kev.probabilities(swapped, rows), right = kev.probabilities(kev.head(), rows);
  expect_near(got, want, kev.probability_bound());
  double moved = 0;
  for (std::size_t i = 0; i < right.size(); ++i) moved = std::max(moved, std::abs(got[i] - right[i]));
  EXPECT_GT(moved, 0.05);
}

TEST_P(KevGolden, TheBaseAloneAnswersAsTheReferencesBaseAlone) {
  Kev kev(GetParam());
  if (kev.checkpoint().weights == loaders::KevWeights::full) GTEST_SKIP() << "full weights have no base apart";
  const Json& base_only = kev.golden()["base_only"];
  const DecisionProblem problem = kev.problem(0);
  const std::vector<std::int32_t> state = kev.state_ids(problem.state);
  for (std::size_t i = 0; i < problem.questions.size(); ++i) {
    const KevRow row = kev.row(problem.questions[i], state.size());
    const std::vector<float> rows = kev.whole_row(joined(state, row.branch_ids), row, 64, false);
    expect_near(kev.probabilities(kev.head(), rows), doubles(base_only["rows"][i]["probabilities"]),
                kev.probability_bound());
  }
}

// ---- what must hold exactly ----

TEST_P(KevGolden, ChunksDoNotMatter) {
  Kev kev(GetParam());
  const DecisionProblem problem = kev.problem(kev.golden()["cases"].size() - 1);  // The long state.
  const std::vector<std::int32_t> state = kev.state_ids(problem.state);
  const KevRow row = kev.row(problem.questions[1], state.size());
  const std::vector<std::int32_t> ids = joined(state, row.branch_ids);
  const std::vector<float> whole = kev.whole_row(ids, row, 64);
  for (const std::size_t chunk : {1U, 16U}) EXPECT_TRUE(same_bits(kev.whole_row(ids, row, chunk), whole)) << chunk;
}

/// The state once, its whole pages shared by all questions, a branch each behind them: the same bits as a row for each
/// question, a question alone or between others, its tokens alone in a step or beside other rows' tokens.
TEST_P(KevGolden, APrefixInPagesIsTheWholeRowAndTogetherIsAlone) {
  Kev kev(GetParam());
  const DecisionProblem problem = kev.problem(kev.golden()["cases"].size() - 1);
  const std::vector<std::int32_t> state = kev.state_ids(problem.state);
  const auto per_page = static_cast<std::size_t>(kev.tokens_per_page());
  ASSERT_GT(state.size(), 2 * per_page);
  std::vector<KevRow> rows;
  std::vector<std::vector<std::int32_t>> ids;
  Rows alone;
  for (const Question& question : problem.questions) {
    rows.push_back(kev.row(question, state.size()));
    ids.push_back(joined(state, rows.back().branch_ids));
    alone.push_back(kev.whole_row(ids.back(), rows.back()));
  }

  const auto runner = kev.make_runner();
  // Pages hold no recurrent state: a hybrid's rows begin at the state's first token.
  const std::size_t shared_pages = kev.state_slot(0) < 0 ? state.size() / per_page : 0;
  const std::size_t shared = shared_pages * per_page;
  const std::vector<std::int32_t> state_pages = runner->pages(0, static_cast<std::int64_t>(shared));
  kev.run(*runner, {state.begin(), state.begin() + static_cast<std::ptrdiff_t>(shared)}, 0, state_pages, {}, 64,
          kev.slot());
  auto next_page = static_cast<std::int32_t>(shared_pages);
  std::vector<std::vector<std::int32_t>> pages;
  for (const std::vector<std::int32_t>& row : ids) {
    const std::vector<std::int32_t> own = runner->pages(next_page, static_cast<std::int64_t>(row.size() - shared));
    next_page += static_cast<std::int32_t>(own.size());
    pages.push_back(joined(state_pages, own));
  }

  // All but the last token of each, in turns of 16 tokens; the last ones together in one step.
  Rows together(rows.size());
  std::vector<std::size_t> done(rows.size(), shared);
  for (bool any = true; any;) {
    any = false;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::size_t end = std::min(done[i] + 16, ids[i].size() - 1);
      if (end == done[i]) continue;
      std::vector<int> wanted;
      for (const int close : rows[i].closes)
        if (close >= static_cast<int>(done[i]) && close < static_cast<int>(end)) wanted.push_back(close);
      const std::vector<float> part =
          kev.run(*runner, {ids[i].begin(), ids[i].begin() + static_cast<std::ptrdiff_t>(end)}, done[i], pages[i],
                  wanted, 16, kev.slot(), i);
      together[i].insert(together[i].end(), part.begin(), part.end());
      done[i] = end;
      any = true;
    }
  }
  std::vector<StepSequence> steps(rows.size());
  std::vector<StepOutcome> outcomes(rows.size());
  const std::vector<int> only{0};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t closes = together[i].size();
    together[i].resize(closes + kev.hidden());
    steps[i].tokens = std::span(ids[i]).last(1);
    steps[i].first_position = rows[i].decide;
    steps[i].pages = pages[i], steps[i].adapter_slot = kev.slot(), steps[i].state_slot = kev.state_slot(i);
    steps[i].hidden_rows = only, steps[i].hidden = together[i].data() + closes;
  }
  runner->backend->decode(0, steps, outcomes);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_TRUE(outcomes[i].finite);
    EXPECT_TRUE(same_bits(together[i], alone[i])) << problem.questions[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, KevGolden,
                         testing::Values(Names{"qwen2", "adapter", "qwen2"}, Names{"qwen3", "adapter", "qwen3"},
                                         Names{"hybrid", "adapter", "hybrid"}, Names{"full", "checkpoint", "full"},
                                         Names{"qwen2_safetensors", "adapter", "qwen2_safetensors"},
                                         Names{"qwen2_safetensors", "adapter_mlx", "qwen2_mlx"}),
                         [](const auto& tested) { return tested.param.shown; });

// ---- texts and rows ----

TEST(KevText, IsTheReferencesRender) {
  const Json texts = Json::parse(read_file(kev_directory() / "texts.json"));
  int doubled = 0;
  for (const Json& one : texts) {
    const auto json = one["json"].get<std::string>();
    SCOPED_TRACE(json);
    if (json == R"({"a":1,"b":2,"a":3})" || json == R"({"a":{"x":1,"x":{"y":2}},"A":"case"})") {
      ++doubled;  // Python takes the last value; Duet refuses.
      EXPECT_TRUE(fails_with(Code::bad_file, {}, [&] { loaders::parse_json_value(json, "text"); }));
      continue;
    }
    EXPECT_EQ(kev_text(loaders::parse_json_value(json, "text")), one["text"].get<std::string>());
  }
  EXPECT_EQ(doubled, 2);
  EXPECT_GT(texts.size(), 60U);
}

TEST(KevRows, MarkerSpellingsAreBroken) {
  EXPECT_EQ(kev_user_text("a <|box_start|><|fim_suffix|> b"), "a <¦box_start¦><¦fim_suffix¦> b");
  EXPECT_EQ(kev_user_text("<|a|>"), "<¦a¦>");
  EXPECT_EQ(kev_user_text("<|<|A_9|>|>"), "<|<¦A_9¦>|>");
  for (const std::string text : {"", "<||>", "<|a b|>", "<|é|>", "<|im_start", "<|im_start|", "|a|>", "< |a|>"})
    EXPECT_EQ(kev_user_text(text), text);
}

/// What a caller writes never becomes a marker or a control token (cases O-22).
TEST(KevRows, SpecialTokensInTextStayText) {
  const Kev kev({"qwen2", "adapter"});
  const Tokenizer& tokenizer = kev.tokenizer();
  std::vector<std::string> spellings(kKevMarkers.begin(), kKevMarkers.end());
  for (const char* more : {"<|endoftext|>", "<|im_start|>system", "<think>", "</think>", "<tool_call>", "</tool_call>",
                           "<|box_start|><|box_end|>", "<|<|box_end|>box_end|>", "box_end|>", "<|box_"})
    spellings.emplace_back(more);
  for (const std::string& text : spellings) {
    SCOPED_TRACE(text);
    const JsonValue state = json_string("before " + text + " after");
    const std::vector<std::int32_t> ids = kev.state_ids(state);
    EXPECT_EQ(ids.front(), kev.tokens().state);
    const auto is_control = [&](std::int32_t id) { return tokenizer.is_control(id); };
    EXPECT_EQ(std::count_if(ids.begin(), ids.end(), is_control), 1);
    EXPECT_EQ(tokenizer.decode(std::span(ids).subspan(1), false), "before " + kev_user_text(text) + " after");

    const Question question{.name = text,
                            .kind = QuestionKind::choice,
                            .instructions = json_string("Which " + text + "?"),
                            .options = {{"one " + text, json_string(text)}, {"two", {}}, {text, {}}}};
    const KevRow row = kev.row(question, ids.size());
    ASSERT_EQ(row.closes.size(), 3U);
    EXPECT_EQ(std::count_if(row.branch_ids.begin(), row.branch_ids.end(), is_control), 8);
    const auto at = [&](int index) { return row.branch_ids.at(static_cast<std::size_t>(index) - ids.size()); };
    for (const int close : row.closes) EXPECT_EQ(at(close), kev.tokens().option_end);
    EXPECT_EQ(at(row.decide), kev.tokens().decide);
    EXPECT_EQ(row.branch_ids.front(), kev.tokens().question);
  }
}

TEST(KevRows, AddedTokensThatAreNoControlTokensAreFoundAsInTheReference) {
  Json json = Json::parse(read_file(kev_directory() / "qwen2" / "base" / "tokenizer.json"));
  Json token = json["added_tokens"][0];
  token["id"] = 376, token["content"] = "refund", token["special"] = false;
  json["added_tokens"].push_back(token);
  const auto tokenizer = loaders::parse_tokenizer_json(json.dump(), "tokenizer.json");
  const KevTokens tokens = kev_tokens(*tokenizer, "tokenizer.json");
  const std::vector<std::int32_t> ids = kev_state_ids(*tokenizer, tokens, {}, json_string("a refund"));
  EXPECT_EQ(ids.back(), 376);
}

TEST(KevRows, WhatDoesNotFitIsRefusedWithBothNumbers) {
  const Kev kev({"qwen2", "adapter"});
  EXPECT_EQ(kev.budget().state_tokens, 32768);
  EXPECT_EQ(kev.budget().row_tokens, 32768);
  EXPECT_EQ(kev_budget(262144).state_tokens, 65536);
  EXPECT_EQ(kev_budget(262144).row_tokens, 73728);
  const JsonValue state = json_string("a parcel");
  const auto length = static_cast<std::int64_t>(kev.state_ids(state).size());
  const auto state_in = [&](std::int64_t room) {
    return kev_state_ids(kev.tokenizer(), kev.tokens(), {.state_tokens = room, .row_tokens = 1000}, state);
  };
  EXPECT_NO_THROW(state_in(length));
  EXPECT_TRUE(fails_with(Code::no_room, {std::to_string(length) + " tokens", "at most " + std::to_string(length - 1)},
                         [&] { state_in(length - 1); }));
  const Question question{
      .name = "late", .kind = QuestionKind::noul, .instructions = {}, .options = {{"false", {}}, {"true", {}}}};
  const auto row_in = [&](std::int64_t room) {
    return kev_row(kev.tokenizer(), kev.tokens(), {.state_tokens = 1000, .row_tokens = room}, question, length);
  };
  const std::int64_t both = row_in(1000).decide + 1;
  EXPECT_NO_THROW(row_in(both));
  EXPECT_TRUE(fails_with(Code::no_room,
                         {"'late'", std::to_string(both) + " tokens", "at most " + std::to_string(both - 1)},
                         [&] { row_in(both - 1); }));
}

TEST(KevRows, MarkersAreSingleTokensOfTheBase) {
  const std::string text = read_file(kev_directory() / "qwen2" / "base" / "tokenizer.json");
  const auto refuses = [&](const auto& change, std::initializer_list<std::string_view> parts) {
    Json json = Json::parse(text);
    change(json);
    const auto tokenizer = loaders::parse_tokenizer_json(json.dump(), "tokenizer.json");
    return fails_with(Code::bad_file, parts, [&] { kev_tokens(*tokenizer, "the base"); });
  };
  const auto added = [](Json& json, std::string_view content) {
    return std::find_if(json["added_tokens"].begin(), json["added_tokens"].end(),
                        [&](const Json& token) { return token["content"] == content; });
  };
  EXPECT_TRUE(refuses([&](Json& json) { json["added_tokens"].erase(added(json, "<|box_end|>")); },
                      {"the base", "lacks", "'<|box_end|>'"}));
  EXPECT_TRUE(refuses([&](Json& json) { (*added(json, "<|fim_suffix|>"))["content"] = "<|other|>"; },
                      {"lacks", "'<|fim_suffix|>'"}));
  EXPECT_NO_THROW(kev_tokens(*loaders::parse_tokenizer_json(text, "tokenizer.json"), "the base"));
}

TEST(KevRows, MarkersOfTheRealTokenizerAreTheKnownIds) {
  DUET_SHARED_TOKENIZER_OR_SKIP(tokenizer, "qwen3");
  const KevTokens tokens = kev_tokens(*tokenizer, "qwen3");
  EXPECT_EQ(tokens.state, 151659);
  EXPECT_EQ(tokens.question, 151660);
  EXPECT_EQ(tokens.option, 151648);
  EXPECT_EQ(tokens.option_end, 151649);
  EXPECT_EQ(tokens.decide, 151661);
}

// ---- files ----

testing::AssertionResult reports(const std::vector<std::string>& report, const std::vector<std::string>& parts) {
  for (const std::string& line : report)
    if (std::all_of(parts.begin(), parts.end(),
                    [&](const std::string& part) { return line.find(part) != std::string::npos; }))
      return testing::AssertionSuccess();
  auto failure = testing::AssertionFailure() << "no such line in the report:";
  for (const std::string& line : report) failure << "\n  " << line;
  return failure;
}

/// A copy of a golden folder to bend.
class KevFiles : public testing::Test {
 protected:
  const fs::path& folder() const { return directory_.path(); }
  void take(const fs::path& from) const {
    for (const auto& file : fs::directory_iterator(kev_directory() / from))
      fs::copy_file(file, folder() / file.path().filename(), fs::copy_options::overwrite_existing);
  }
  void change(const std::string& file, std::string_view changes) const {
    Json json = Json::parse(read_file(folder() / file));
    json.merge_patch(Json::parse(changes));
    write_file(folder() / file, json.dump());
  }
  loaders::KevCheckpoint read() {
    report_.clear();
    return loaders::read_kev_checkpoint(folder(), report_);
  }
  testing::AssertionResult refuses(Code code, const std::vector<std::string_view>& parts) {
    return fails_with(code, parts, [&] { read(); });
  }

  TemporaryDirectory directory_;
  std::vector<std::string> report_;
};

TEST_F(KevFiles, AreKnownByHeadAndWhatStandsBesideIt) {
  for (const char* name : {"qwen2/adapter", "qwen3/adapter", "hybrid/adapter", "full/checkpoint",
                           "qwen2_safetensors/adapter", "qwen2_safetensors/adapter_mlx"})
    EXPECT_TRUE(loaders::is_kev_folder(kev_directory() / name)) << name;
  for (const char* name : {"qwen2/base", "hybrid/base", "qwen2", "absent"})
    EXPECT_FALSE(loaders::is_kev_folder(kev_directory() / name)) << name;
  EXPECT_TRUE(refuses(Code::not_found, {"head.pt"}));
  take("qwen2_safetensors/adapter");
  fs::remove(folder() / "meta.json");
  EXPECT_TRUE(refuses(Code::not_found, {"head.safetensors without meta.json"}));
  take("qwen2/adapter");
  EXPECT_EQ(read().head_file, (folder() / "head.pt").string());
  take("qwen2_safetensors/adapter");
  EXPECT_EQ(read().head_file, (folder() / "meta.json").string());
  EXPECT_TRUE(reports(report_, {"head.pt", "is not used"}));
}

TEST_F(KevFiles, SayWhatTheyWereTrainedOn) {
  std::vector<std::string> report;
  const auto newest = loaders::read_kev_checkpoint(kev_directory() / "qwen2" / "adapter", report);
  EXPECT_EQ(newest.base, "golden/tiny-kev-qwen2");
  EXPECT_EQ(newest.base_revision, "0123456789abcdef0123456789abcdef01234567");
  EXPECT_EQ(newest.weights, loaders::KevWeights::lora);
  EXPECT_EQ(newest.weights_dtype, "fp32");
  EXPECT_EQ(newest.lora_rank, 4);
  EXPECT_EQ(newest.head.hidden, 64);
  EXPECT_TRUE(reports(report, {"golden/tiny-kev-qwen2", "0123456789abcdef"}));
  const auto oldest = loaders::read_kev_checkpoint(kev_directory() / "qwen3" / "adapter", report);
  EXPECT_EQ(oldest.base, "golden/tiny-kev-qwen3");
  EXPECT_EQ(oldest.base_revision, "");
  EXPECT_EQ(oldest.head.dims, 256);
  EXPECT_EQ(oldest.head.temperature, 1);
  const auto full = loaders::read_kev_checkpoint(kev_directory() / "full" / "checkpoint", report);
  EXPECT_EQ(full.weights, loaders::KevWeights::full);
  for (const char* name : {"adapter", "adapter_mlx"}) {
    const auto converted = loaders::read_kev_checkpoint(kev_directory() / "qwen2_safetensors" / name, report);
    EXPECT_EQ(converted.base, newest.base) << name;
    EXPECT_EQ(converted.base_revision, newest.base_revision) << name;
    EXPECT_EQ(converted.head.temperature, newest.head.temperature) << name;
    EXPECT_TRUE(same_bits(converted.head.query_weight, newest.head.query_weight)) << name;
    EXPECT_TRUE(same_bits(converted.head.key_bias, newest.head.key_bias)) << name;
  }
}

TEST_F(KevFiles, WeightsMustBeWhatLiesThere) {
  take("full/checkpoint");
  fs::copy_file(kev_directory() / "qwen2/adapter/head.pt", folder() / "head.pt", fs::copy_options::overwrite_existing);
  EXPECT_TRUE(refuses(Code::bad_file, {"head.pt", "weights is lora", "without an adapter"}));
  fs::copy_file(kev_directory() / "hybrid/adapter/head.pt", folder() / "head.pt", fs::copy_options::overwrite_existing);
  EXPECT_TRUE(refuses(Code::bad_file, {"weights is lora (what files without the field mean)"}));
  take("full/checkpoint");
  EXPECT_NO_THROW(read());
  take("qwen2_safetensors/adapter");  // An adapter beside whole weights rules.
  fs::remove(folder() / "meta.json");
  EXPECT_TRUE(refuses(Code::bad_file, {"weights is full", "an adapter"}));
  fs::remove(folder() / "adapter_config.json");
  fs::remove(folder() / "config.json");
  EXPECT_TRUE(refuses(Code::not_found, {"adapter_config.json", "config.json"}));
}

TEST_F(KevFiles, WhatDuetDoesNotComputeIsRefusedByName) {
  take("qwen2_safetensors/adapter");
  change("meta.json", R"({"option_isolation":true})");
  EXPECT_TRUE(refuses(Code::unsupported, {"meta.json", "option_isolation"}));
  change("meta.json", R"({"option_isolation":false,"special_embeddings":true})");
  EXPECT_TRUE(refuses(Code::unsupported, {"special_embeddings"}));
  change("meta.json", R"({"special_embeddings":null,"weights":"half"})");
  EXPECT_TRUE(refuses(Code::unsupported, {"weights", "'half'"}));
  change("meta.json", R"({"weights":"full"})");
  EXPECT_TRUE(refuses(Code::bad_file, {"weights is full", "an adapter"}));
  change("meta.json", R"({"weights":"lora"})");
  EXPECT_NO_THROW(read());
}

TEST_F(KevFiles, OtherFormatsAndDelimitersAreRefused) {
  take("qwen2_safetensors/adapter_mlx");
  EXPECT_NO_THROW(read());
  change("kev_config.json", R"({"format_version":2})");
  EXPECT_TRUE(refuses(Code::unsupported, {"format_version", "2"}));
  change("kev_config.json", R"({"format_version":1,"delimiters":{"option":"<|vision_start|>"}})");
  EXPECT_TRUE(refuses(Code::unsupported, {"delimiters.option", "vision_start"}));
  change("kev_config.json", R"({"delimiters":null,"format":"lev"})");
  EXPECT_TRUE(refuses(Code::bad_file, {"'format'", "lev"}));
}

TEST_F(KevFiles, NumbersThatMakeNoSenseAreRefused) {
  take("qwen2_safetensors/adapter");
  for (const auto& [changes, part] : std::vector<std::pair<std::string_view, std::string_view>>{
           {R"({"temperature":0})", "temperature"},
           {R"({"temperature":-1.5})", "temperature"},
           {R"({"temperature":"warm"})", "temperature"},
           {R"({"head_dim":31})", "[31, 64]"},
           {R"({"head_dim":0})", "head_dim"},
           {R"({"head_dim":null})", "[256, 64]"},
           {R"({"lora":-4})", "lora"},
           {R"({"base":7})", "base"},
           {R"({"option_isolation":"no"})", "option_isolation"}}) {
    take("qwen2_safetensors/adapter");
    change("meta.json", changes);
    EXPECT_TRUE(refuses(Code::bad_file, {part})) << changes;
  }
  take("qwen2_safetensors/adapter");
  change("meta.json", R"({"lora":16})");
  EXPECT_NO_THROW(read());
  EXPECT_TRUE(reports(report_, {"'r' is 4", "says 16"}));
}

TEST_F(KevFiles, TheHeadBelongsToTheBase) {
  take("qwen2/adapter");
  const loaders::KevCheckpoint kev = read();
  ModelSpec base;
  base.hidden = 64;
  EXPECT_NO_THROW(loaders::check_kev_base(kev, base, "base"));
  base.hidden = 128;
  EXPECT_TRUE(fails_with(Code::bad_file, {"head.pt", "64", "'base'", "128", "golden/tiny-kev-qwen2"},
                         [&] { loaders::check_kev_base(kev, base, "base"); }));
}

TEST_F(KevFiles, AnotherTokenizerBesideTheAdapterIsReportedAndNotUsed) {
  const auto load = [&](const fs::path& base, const fs::path& kev) {
    report_.clear();
    return loaders::load_kev_tokenizer(kev_directory() / base, kev, report_);
  };
  // The same one in another spelling, and none.
  (void)load("qwen2/base", kev_directory() / "qwen2/adapter");
  EXPECT_TRUE(report_.empty());
  (void)load("qwen2/base", kev_directory() / "qwen2_safetensors/adapter");
  EXPECT_TRUE(report_.empty());
  // Files of an older one: the ids are the base's.
  const auto tokenizer = load("hybrid/base", kev_directory() / "hybrid/adapter");
  EXPECT_EQ(kev_tokens(*tokenizer, "base").state, 359);
  EXPECT_EQ(report_.size(), 1U);
  EXPECT_TRUE(reports(report_, {"added_tokens.json", "of another tokenizer", "the base's is used"}));
  take("hybrid/adapter");
  fs::remove(folder() / "added_tokens.json");
  const auto older = load("qwen2/base", folder());
  EXPECT_EQ(kev_tokens(*older, "base").state, 371);
  EXPECT_TRUE(reports(report_, {"tokenizer.json", "is not the base's", "the base's is used"}));
  write_file(folder() / "tokenizer.json", "{");
  EXPECT_EQ(kev_tokens(*load("qwen2/base", folder()), "base").state, 371);
  EXPECT_TRUE(reports(report_, {"tokenizer.json", "cannot be read"}));
}

/// Whole weights are published without a head for the vocabulary, whether or not their config ties one.
TEST_F(KevFiles, FullWeightsNeedNoVocabularyHead) {
  take("full/checkpoint");
  change("config.json", R"({"tie_word_embeddings":false})");
  const auto source = loaders::open_checkpoint(folder(), {});
  EXPECT_TRUE(source->spec().tied_head);
  EXPECT_TRUE(reports(source->report(), {"lm_head", "Kev does without"}));
  fs::remove(folder() / "head.pt");
  EXPECT_TRUE(fails_with(Code::bad_file, {"lm_head.weight"}, [&] { loaders::open_checkpoint(folder(), {}); }));
}

// ---- the head's arithmetic ----

TEST(PointerHead, ReadsDecideByQAndClosesByK) {
  const PointerHead head{.hidden = 2,
                         .dims = 4,
                         .query_weight = {1, 0, 0, 1, 1, 1, 0, 0},
                         .key_weight = {1, 0, 0, 2, 0, 0, 0, 0},
                         .query_bias = {0, 0, 0, 3},
                         .key_bias = {0, 1, 0, 5}};
  const std::vector<float> decide{2, 3}, closes{1, 1, -1, 0.5};
  std::vector<float> logits(2);
  pointer_logits(head, decide, closes, logits);  // q = (2, 3, 5, 3); k = (1, 3, 0, 5) and (-1, 2, 0, 5)
  EXPECT_FLOAT_EQ(logits[0], (2 + 9 + 15) / 2.0F);
  EXPECT_FLOAT_EQ(logits[1], (-2 + 6 + 15) / 2.0F);
}

}  // namespace
}  // namespace duet::test
