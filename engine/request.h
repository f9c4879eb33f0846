#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "duet/engine.h"

namespace duet {

/// A row for an encoder and what it gives.
struct EncodedRow {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> markers;  ///< Positions of the options' tokens.
  int question_kind = 0;
  std::vector<float> option_logits = {};  ///< [markers.size()] once the request has ended well.
  std::vector<float> act_logits = {};     ///< [act_outputs] likewise.
};
using EncoderBatch = std::vector<EncodedRow>;

/// Rows of a decoder behind its final norm, for a head of another kind than the vocabulary's.
struct HiddenRows {
  std::vector<int> positions;    ///< In the prompt, ascending, at least one.
  std::vector<float> rows = {};  ///< [positions.size(), hidden] once the request has ended well.
};

/// A request as the runtime takes it: `duet::Request` with its model looked up and its text turned into ids. Fields
/// mean what they mean there.
struct TokenRequest {
  int model = 0;                         ///< Index into Plan::models.
  std::string adapter;                   ///< Empty: the model's default. "none": the base alone.
  double adapter_scale = 1.0;            ///< Multiplies the scale given when the adapter was loaded.
  std::vector<std::int32_t> prompt_ids;  ///< At least one, each below the model's vocabulary.
  Sampling sampling;
  int max_tokens = 256;
  std::vector<std::string> stop;
  bool ignore_end_tokens = false;
  int max_length_tokens = 1024;
  LengthPolicy length_policy = LengthPolicy::reject;
  int logprobs = 0;
  int priority = 0;
  double deadline = 0;  ///< Seconds from submission; 0: none.
  /// Rows for an encoder, run together as one step, which writes its results into them; null: a prompt to answer. The
  /// worker alone touches them until the request has ended.
  std::shared_ptr<EncoderBatch> batch;
  /// Rows to read instead of an answer: nothing is sampled, and the request ends with the prompt's last token. Touched
  /// like `batch`. A decoder's; max_tokens, sampling, stop and lengths do not matter.
  std::shared_ptr<HiddenRows> readout;
};

}  // namespace duet
