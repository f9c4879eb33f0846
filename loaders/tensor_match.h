#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model.h"

/// Names the model needs against names the files hold, both ways.
namespace duet::loaders {

struct TensorMatch {
  std::vector<std::string> names;  ///< In the files, one for each row.
  std::vector<std::string> notes;  ///< Tensors left unused and why, for the load report.
};

/// `held`: every tensor name of the files, companions of 4-bit tensors left out. Checkpoints of the bare model, without
/// the prefix "model.", are understood, and hybrids with "model.language_model.", "model." or nothing before the names.
/// Throws Error(bad_file) when a tensor is missing, with the nearest name there is, and Error(unsupported) for a tensor
/// nobody reads that belongs to a layer or module of the model: leaving it out would change the answers. Other unread
/// tensors are noted. `source` is for messages.
TensorMatch match_tensors(const std::vector<TensorRow>& rows, const ModelSpec& spec,
                          const std::vector<std::string>& held, const std::string& source);

/// Shape of the tensor in Hugging Face files.
std::vector<std::int64_t> shape_in_files(const TensorRow& row);

}  // namespace duet::loaders
