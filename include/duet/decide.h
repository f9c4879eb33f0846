#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "duet/error.h"
#include "duet/export.h"

/// Typed questions about a state: what decision models (Laya, Kev) answer instead of writing text.
///
///     duet::DecisionRequest request;
///     request.model = "laya";
///     request.state = "I was charged twice for invoice 4411";
///     request.questions = {{"team", duet::QuestionKind::choice, "Which team should answer?",
///                           {{"billing", "invoices, refunds"}, {"technical", "bugs, outages"}}}};
///     duet::Decision decision = engine.decide(request);
///     if (decision.code == duet::Code::ok) std::puts(decision.answers[0].labels[decision.answers[0].choice].c_str());
namespace duet {

enum class QuestionKind : std::uint8_t {
  choice = 0,  ///< Which one of the options.
  score = 1,   ///< Which level, the lowest first.
  noul = 2     ///< Whether a statement is true.
};
DUET_API std::string_view name_of(QuestionKind kind);  ///< "choice", "score", "noul".

struct DecisionOption {
  std::string label = {};        ///< choice: what the answer names. score: unused, the level's number stands for it.
  std::string description = {};  ///< May be empty; of score the level's text.
};

struct DecisionQuestion {
  std::string name = {};  ///< Unique within the request.
  QuestionKind kind = QuestionKind::choice;
  std::string instructions = {};
  std::vector<DecisionOption> options = {};  ///< choice and score: 1 to 255, in the order shown. noul: none.
};

/// Texts are plain; `json` takes the whole request in the System One shape instead, where states, instructions and
/// descriptions may be any JSON value:
///     {"state": ..., "questions": {"team": {"type": "choice", "instructions": ..., "criteria": {...}}}}
/// All text comes as text: nothing in it becomes a marker or another special token.
struct DecisionRequest {
  std::string model = {};
  std::string json = {};  ///< When not empty, `state` and `questions` must be.
  std::string state = {};
  std::vector<DecisionQuestion> questions = {};
  int priority = 0;     ///< As duet::Request's.
  double deadline = 0;  ///< Seconds from submission; 0: none.
};

/// How sure a model is of one answer: measures in [0, 1], by name. They mean different things: a threshold belongs to
/// one of them.
struct DecisionConfidence {
  double largest = 0;  ///< The largest probability. Temperatures are fitted on it; routing reads it by default.
  double entropy = 0;  ///< 1 - H(p) / log n.
  double linear = 0;   ///< (n max p - 1) / (n - 1).
  double spread = 0;   ///< score: 1 - mean distance to the most probable level, over that of all levels to the middle.
  double published =
      0;  ///< What the model's own reference calls confidence; of a Kev's noul, which has none, `linear`.
};

struct DecisionAnswer {
  std::string question = {};
  QuestionKind kind = QuestionKind::choice;
  std::vector<std::string> labels = {};        ///< choice: the labels; score: "0", "1", ...; noul: "false", "true".
  std::vector<std::string> descriptions = {};  ///< Of each label, as the model's family renders it; may be empty.
  std::vector<double> probabilities = {};      ///< softmax(logits / temperature), one for each label, in order.
  std::vector<float> logits = {};              ///< Of each label, before temperature: what calibration fits on.
  double temperature = 1;
  bool temperature_is_fitted = false;  ///< It came from DecisionRules, not from the checkpoint.
  std::size_t choice = 0;              ///< The first most probable label.
  double score = 0;                    ///< score: sum of i p_i; noul: P(true).
  DecisionConfidence confidence = {};
  double act_probability = 0;          ///< Laya's act head; for completeness, it says next to nothing.
  std::string model = {};              ///< Which model gave it.
  std::string family = {};             ///< "laya" or "kev": the format of that model's checkpoint.
  bool escalated = false;              ///< Another model was asked first.
  std::string reason = {};             ///< "largest 0.41 is below 0.70", ...; empty when nothing was routed.
  std::int64_t state_tokens = 0;       ///< Of the whole state, as this model reads it.
  std::int64_t state_tokens_kept = 0;  ///< Fewer: the state was cut to fit.
  int distinct_options = 0;            ///< Fewer than labels: options that were cut to the same text.
};

struct Decision {
  Code code = Code::ok;
  std::string message = {};                  ///< Empty when `code` is ok.
  std::vector<DecisionAnswer> answers = {};  ///< In the order of the questions; empty when it failed.
  std::int64_t input_tokens = 0;             ///< Tokens that went through models.
  double seconds = 0;                        ///< From request to answer.
};

/// A temperature that was fitted on labelled questions; it wins over the checkpoint's own.
struct DecisionTemperature {
  std::string model = {};
  /// Which questions: a kind ("choice"), or a kind with a number of options, which wins ("choice:3-5"). Numbers are
  /// those of Laya's checkpoints: 2 (also one), 3-5, 6-10, 11+.
  std::string questions = {};
  double value = 1;  ///< In [0.5, 5].
};

/// The fast model answers every question; those of which it is not sure enough go to the deep one with the same state.
struct DecisionRules {
  std::string fast = "laya";
  std::string deep = "kev";         ///< Empty: the fast model answers alone.
  std::string measure = "largest";  ///< A field of DecisionConfidence.
  /// By QuestionKind: below it the deep model is asked. 0: never, above 1: always.
  std::array<double, 3> threshold = {0.7, 0.7, 0.7};
  std::vector<DecisionTemperature> temperatures = {};  ///< Of either model.
};

/// Reads rules from a JSON file, as `engine_run calibrate --output` writes it; absent keys keep their defaults:
///     {"fast": "laya", "deep": "kev", "measure": "largest", "threshold": {"choice": 0.8, "score": 0.7, "noul": 0.7},
///      "temperatures": {"laya": {"choice": 1.4, "choice:3-5": 1.3}}}
/// Throws Error(bad_file) for an unknown key, a wrong kind and rules that make no sense.
DUET_API DecisionRules read_decision_rules(const std::string& path);

}  // namespace duet
