#pragma once

#include <string>
#include <vector>

#include "duet/engine.h"
#include "engine/api/open.h"
#include "engine/request.h"

/// A request checked whole before it is queued: names, settings and text become a TokenRequest, or an Error.
namespace duet::api {

/// Longest text that is tokenized at once, a chat's as its template renders it.
constexpr std::size_t kMaxPromptBytes = std::size_t{16} << 20;

/// Throws Error(no_room) for more than kMaxPromptBytes; asked before every tokenization.
void check_size(std::size_t bytes);

/// Index into `models`. Throws Error(not_found) naming the nearest.
int find_model(const std::vector<ModelParts>& models, const std::string& name);

/// Throws Error for anything that makes no sense. `adapters` are the names loaded now.
TokenRequest prepare(const Request& request, const ModelParts& model, int model_index,
                     const std::vector<std::string>& adapters);

/// Throws Error(unsupported) when the model has no tokenizer.
const Tokenizer& tokenizer_of(const ModelParts& model);

/// Throws Error(invalid_argument) naming `what` when `text` is not valid UTF-8.
void check_utf8(std::string_view text, std::string_view what);

}  // namespace duet::api
