#include "engine/backend.h"

#include "duet/error.h"

namespace duet {

void Backend::encode(int /*model*/, std::span<const EncoderRow> /*rows*/, std::span<StepOutcome> /*outcomes*/) {
  throw Error(Code::unsupported, "This backend runs no encoders");
}

}  // namespace duet
