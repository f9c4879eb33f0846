// No allocation after start: malloc and its kin are trapped while steps run (O-27's "trap it").
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <vector>

#include "tests/host/array_source.h"
#include "tests/host/step_runner.h"
#include "tests/support/compare.h"

#if defined(__SANITIZE_ADDRESS__)
#define DUET_TRAPS_MALLOC 0
#elif defined(__GLIBC__)
#define DUET_TRAPS_MALLOC 1
#else
#define DUET_TRAPS_MALLOC 0
#endif

namespace {
std::atomic<bool> armed{false};
std::atomic<int> allocations{0};
}  // namespace

#if DUET_TRAPS_MALLOC
// glibc's own entry points stand behind ours; operator new calls malloc.
extern "C" {
void* __libc_malloc(std::size_t size);                           // NOLINT
void* __libc_calloc(std::size_t count, std::size_t size);        // NOLINT
void* __libc_realloc(void* old, std::size_t size);               // NOLINT
void* __libc_memalign(std::size_t alignment, std::size_t size);  // NOLINT

void* malloc(std::size_t size) {
  if (armed) ++allocations;
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  if (armed) ++allocations;
  return __libc_calloc(count, size);
}
void* realloc(void* old, std::size_t size) {
  if (armed) ++allocations;
  return __libc_realloc(old, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  if (armed) ++allocations;
  return __libc_memalign(alignment, size);
}
}
#endif

namespace duet::test {
namespace {

TEST(HostAllocations, ThereAreNoneInPrefillDecodeAndChangesOfAdapterOrModel) {
#if !DUET_TRAPS_MALLOC
  GTEST_SKIP() << "malloc cannot be replaced in this build";
#else
  const ModelSpec spec = small_spec();
  ArraySource first(spec, all_in({Storage::nf4, 64, true}), 700), second(spec, all_in({.storage = Storage::bf16}), 701);
  StepRunner runner({&first, &second}, {.threads = 3});
  const std::vector<Part> parts{Part::query, Part::value, Part::down, Part::embedding, Part::head};
  runner.backend->load_adapter(0, 0, random_adapter(spec, parts, 8, 0.5F, false, Storage::f16, 710), 1.0F);
  runner.backend->load_adapter(0, 1, random_adapter(spec, {Part::gate}, 4, 0.5F, true, Storage::bf16, 720), 1.0F);

  Sampling sampling;
  sampling.temperature = 0.8, sampling.top_k = 20, sampling.top_p = 0.9, sampling.repetition_penalty = 1.1;
  const std::vector<std::int32_t> prompt = random_tokens(40, 128, 20);
  std::vector<std::vector<std::int32_t> > pages;
  for (std::int32_t i = 0; i < 3; ++i) pages.push_back(runner.pages(4 * i, 60));
  std::vector<float> logits(16 * 128);
  std::vector<StepSequence> batch(3);
  std::vector<StepOutcome> outcomes(3);

  allocations = 0;
  armed = true;
  std::free(std::malloc(1));  // NOLINT: the trap itself must see this one.
  bool finite = true;
  for (const int model : {0, 1, 0}) {
    for (std::size_t i = 0; i < 3; ++i) {
      batch[i] = StepSequence{};
      batch[i].pages = pages[i];
      batch[i].adapter_slot = model == 0 ? static_cast<int>(i) - 1 : -1;
      batch[i].rules.usable_vocabulary = 128, batch[i].rules.sampling = &sampling, batch[i].rules.logprobs = 5;
      batch[i].rules.history = prompt;
      for (std::size_t done = 0; done < 32; done += 16) {
        batch[i].tokens = std::span(prompt).subspan(done, 16);
        batch[i].first_position = static_cast<std::int64_t>(done);
        batch[i].sample = done == 16;
        batch[i].logits = done == 0 ? logits.data() : nullptr;
        finite = finite && runner.backend->prefill(model, batch[i]).finite;
      }
      batch[i].logits = nullptr;
    }
    for (std::int64_t position = 32; position < 40; ++position) {
      for (StepSequence& sequence : batch) {
        sequence.tokens = std::span(prompt).subspan(static_cast<std::size_t>(position), 1);
        sequence.first_position = position;
      }
      runner.backend->decode(model, batch, outcomes);
      for (const StepOutcome& outcome : outcomes) finite = finite && outcome.finite;
    }
  }
  armed = false;
  EXPECT_TRUE(finite);
  EXPECT_EQ(allocations.load(), 1) << "one is the trap's own check";
#endif
}

}  // namespace
}  // namespace duet::test
