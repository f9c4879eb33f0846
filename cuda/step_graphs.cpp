#include "cuda/step_graphs.h"

#include <algorithm>

#include "cuda/check.h"
#include "duet/error.h"

namespace duet::cuda {
namespace {

constexpr std::size_t kNodesOfLayer = 14;
constexpr std::size_t kNodesBesideLayers = 6;
constexpr std::size_t kBytesOfNode = 2300;

GraphExecHandle capture(const DecoderView& decoder, const StepScratch& scratch, int rows, bool lora, Stream stream) {
  const StepShape shape{.rows = rows, .lora = lora, .prefill = false, .first_position = 0};
  DUET_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t raw = nullptr;
  try {
    launch_layers(decoder, scratch, shape, stream);
    launch_head(decoder, scratch, shape, 0, rows, stream);
    launch_sampling(decoder, scratch, rows, stream);
  } catch (...) {
    static_cast<void>(cudaStreamEndCapture(stream, &raw));
    static_cast<void>(GraphHandle(raw));
    throw;
  }
  DUET_CUDA(cudaStreamEndCapture(stream, &raw));
  const GraphHandle graph(raw);
  cudaGraphExec_t executable = nullptr;
  DUET_CUDA(cudaGraphInstantiate(&executable, graph.get(), 0));
  GraphExecHandle handle(executable);
  DUET_CUDA(cudaGraphUpload(handle.get(), stream));
  return handle;
}

}  // namespace

std::vector<int> graph_sizes(int max_batch_sequences) {
  std::vector<int> sizes;
  for (int rows = 1; rows < max_batch_sequences; rows *= 2) sizes.push_back(rows);
  sizes.push_back(max_batch_sequences);
  return sizes;
}

StepGraphs::StepGraphs(const DecoderView& decoder, const StepScratch& scratch, int max_batch_sequences,
                       bool has_adapter_slots, Stream stream) {
  for (const int rows : graph_sizes(max_batch_sequences)) {
    Entry entry;
    entry.rows = rows;
    entry.plain = capture(decoder, scratch, rows, false, stream);
    if (has_adapter_slots) entry.with_adapters = capture(decoder, scratch, rows, true, stream);
    entries_.push_back(std::move(entry));
  }
  DUET_CUDA(cudaStreamSynchronize(stream));
}

int StepGraphs::rows_for(int sequences) const {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.rows >= sequences; });
  if (found == entries_.end()) throw Error(Code::internal, "A decode step is larger than every graph");
  return found->rows;
}

void StepGraphs::launch(int rows, bool lora, Stream stream) const {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.rows == rows; });
  DUET_CUDA(cudaGraphLaunch((lora ? found->with_adapters : found->plain).get(), stream));
}

std::size_t graph_bytes(const ModelSpec& spec, const StepLimits& limits) {
  const std::size_t nodes = static_cast<std::size_t>(spec.layers) * kNodesOfLayer + kNodesBesideLayers;
  return 2 * graph_sizes(limits.max_batch_sequences).size() * nodes * kBytesOfNode;
}

}  // namespace duet::cuda
