#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/runtime.h"
#include "tests/support/fake_backend.h"

/// A runtime on a device of hashes, and what its tests share.
namespace duet::test {

inline std::vector<std::int32_t> ids_of(const Answer& answer) {
  std::vector<std::int32_t> ids;
  for (const GeneratedToken& token : answer.tokens) ids.push_back(token.id);
  return ids;
}

inline TokenRequest request_of(int model, std::vector<std::int32_t> prompt, int max_tokens) {
  TokenRequest request;
  request.model = model;
  request.prompt_ids = std::move(prompt);
  request.max_tokens = max_tokens;
  request.max_length_tokens = 100000;
  return request;
}

inline Answer run(Runtime& runtime, TokenRequest request, TokenSink* sink = nullptr) {
  return runtime.wait(runtime.submit(std::move(request), sink));
}

class CollectingSink : public TokenSink {
 public:
  void on_text(std::string_view text) override {
    const std::lock_guard lock(mutex_);
    text_ += text;
  }
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

/// Lets the worker through one step at a time, or freely.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_ || let_through_ > 0; });
    --let_through_;
  }
  void wait_for_arrivals(int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_ >= count; });
  }
  void let_through(int count) {
    const std::lock_guard lock(mutex_);
    let_through_ += count;
    changed_.notify_all();
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0, let_through_ = 0;
  bool open_ = false;
};

class RuntimeTest : public testing::Test {
 protected:
  Runtime& open(const FakeSetup& setup = {}, const RuntimeOptions& options = {},
                std::vector<RuntimeModel> models = fake_models()) {
    plan_ = fake_plan(setup);
    backend_ = std::make_unique<FakeBackend>(plan_);
    if (configure_) configure_(*backend_);
    runtime_ = std::make_unique<Runtime>(*backend_, plan_, std::move(models), options);
    return *runtime_;
  }

  std::function<void(FakeBackend&)> configure_;
  Plan plan_;
  std::unique_ptr<FakeBackend> backend_;
  std::unique_ptr<Runtime> runtime_;
};

}  // namespace duet::test
