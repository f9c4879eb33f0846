#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cuda/check.h"
#include "cuda/device.h"
#include "cuda/launch.h"

/// Times of launches on the card: captured in a graph as a step captures them, median of several replays.
namespace duet::test {

class OwnStream {
 public:
  OwnStream() {
    cudaStream_t raw = nullptr;
    DUET_CUDA(cudaStreamCreateWithFlags(&raw, cudaStreamNonBlocking));
    stream_ = cuda::Handle<cudaStream_t, cudaStreamDestroy>(raw);
  }
  cuda::Stream get() const { return stream_.get(); }
  void wait() const { DUET_CUDA(cudaStreamSynchronize(stream_.get())); }

 private:
  cuda::Handle<cudaStream_t, cudaStreamDestroy> stream_;
};

/// What `launch(stream)` enqueues, as a graph that can be run again and again.
class Captured {
 public:
  template <class Launch>
  Captured(const OwnStream& stream, int times, Launch&& launch) : stream_(stream.get()) {
    DUET_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < times; ++i) launch(stream_);
    cudaGraph_t graph = nullptr;
    DUET_CUDA(cudaStreamEndCapture(stream_, &graph));
    const cuda::Handle<cudaGraph_t, cudaGraphDestroy> own(graph);
    cudaGraphExec_t executable = nullptr;
    DUET_CUDA(cudaGraphInstantiate(&executable, graph, 0));
    graph_ = cuda::Handle<cudaGraphExec_t, cudaGraphExecDestroy>(executable);
  }
  void run() const { DUET_CUDA(cudaGraphLaunch(graph_.get(), stream_)); }

 private:
  cuda::Stream stream_;
  cuda::Handle<cudaGraphExec_t, cudaGraphExecDestroy> graph_;
};

/// Microseconds of one launch: the median of 25 replays of a graph of 20 launches in a row, by 20.
template <class Launch>
double microseconds_of(Launch&& launch) {
  constexpr int kLaunches = 20;
  constexpr int kReplays = 25;
  const OwnStream stream;
  const Captured graph(stream, kLaunches, launch);
  cudaEvent_t raw[2] = {};
  for (cudaEvent_t& event : raw) DUET_CUDA(cudaEventCreate(&event));
  const cuda::Handle<cudaEvent_t, cudaEventDestroy> begin(raw[0]);
  const cuda::Handle<cudaEvent_t, cudaEventDestroy> end(raw[1]);
  std::vector<float> times;
  for (int i = 0; i < kReplays + 3; ++i) {
    DUET_CUDA(cudaEventRecord(begin.get(), stream.get()));
    graph.run();
    DUET_CUDA(cudaEventRecord(end.get(), stream.get()));
    stream.wait();
    float milliseconds = 0;
    DUET_CUDA(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
    if (i >= 3) times.push_back(milliseconds);
  }
  std::nth_element(times.begin(), times.begin() + kReplays / 2, times.end());
  return 1000.0 * double{times[kReplays / 2]} / kLaunches;
}

inline void print_time(const std::string& what, double microseconds) {
  fmt::print("[ TIME     ] {}: {:.2f} us\n", what, microseconds);
}

}  // namespace duet::test
