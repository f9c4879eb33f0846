#include "engine/weight_source.h"

#include <fmt/format.h>

#include "duet/error.h"

namespace duet {

void WeightSource::stream(std::size_t index, StoredSink&) const {
  throw Error(Code::internal, fmt::format("{} cannot hand out tensor {} as it is stored", name(), index));
}

}  // namespace duet
