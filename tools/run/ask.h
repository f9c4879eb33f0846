#pragma once

#include <string>
#include <vector>

#include "duet/engine.h"
#include "tools/run/options.h"

/// One question, put to the models that the mode says.
namespace duet::run {

struct Reply {
  std::vector<Answer> answers;  ///< One; with Mode::compare one a model, the fast one first.
  bool routed = false;
  RoutedAnswer route;  ///< When routed; its `answer` is answers[0].
};

/// The settings of `options` with `text` as a raw prompt or as a user's message behind the system one.
Request request_for(const RunOptions& options, std::string text);

/// Blocks. `request.model` is set by the mode. `sink` may be null; with Mode::compare it gets nothing.
Reply ask(Engine& engine, const RunOptions& options, Mode mode, Request request, TokenSink* sink);

/// The code of the first answer that failed, or Code::ok.
Code code_of(const Reply& reply);

}  // namespace duet::run
