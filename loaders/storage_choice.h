#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "duet/engine.h"
#include "engine/model.h"
#include "engine/weight_source.h"

/// Which storage each tensor gets, from what the file holds and what was asked.
namespace duet::loaders {

std::string_view name_of(WeightType type);  ///< "auto", "as-stored", "nf4", ...

/// What most elements of the layers' matrices are held as.
WeightType main_weight_type(const std::vector<WeightTensor>& tensors);

/// Throws Error(invalid_argument) for a block size that a type asked for cannot have. int8 matrices beside 4-bit ones
/// take blocks of 64 when `block_size` is larger.
void check_options(const WeightOptions& options);

/// Vectors are float32; a matrix is what was asked of its role, or what it is (as_stored, and automatic: who opens a
/// model has chosen by then where it is more than that). A tied head has no tensor: the
/// embedding's type rules both. A quantised tensor keeps its blocks, or is decoded to floats; Error(unsupported) when
/// another block type is asked of it. `source` names file and tensor.
StorageSpec chosen_storage(const TensorRow& row, const StorageSpec& stored, const WeightOptions& options,
                           std::string_view source);

/// What of `options` has no effect on this model, as sentences for the load report.
void note_ignored_options(const WeightOptions& options, bool tied_head, std::vector<std::string>& report);

}  // namespace duet::loaders
