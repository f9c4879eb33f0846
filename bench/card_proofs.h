#pragma once

/// Proofs that need a card: two models and more inside 6 GiB, and many minutes of everything at once.
namespace duet::bench {

struct SixGibOptions {
  int requests = 1000;
  bool json = false;
};

/// `engine_bench six-gib`: a child process fills the card until exactly 6 GiB less a display's 300 MiB are free; then
///   two       two qwen2.5-1.5b, each its own base, adapters of rank 16 and 8, 8,192 KV tokens each, `requests` in
///   turn,
///             with the KV policies keep and clear
///   many      as many qwen2.5-1.5b, each its own base, as the plan fits; at least four
///   deep      qwen3-4b beside a qwen2.5-1.5b
/// each from nothing, the plan printed beside what was measured. Throws Error when a proof fails.
void run_six_gib(const SixGibOptions& options);

/// The child: holds the card's memory until its standard input ends. Prints a line when it holds it.
int fill_card(unsigned long long leave_bytes);

struct SoakOptions {
  double minutes = 10;
  unsigned seed = 1;
};

/// `engine_bench soak`: requests of random lengths of two models, one of which computes NaN, with cancels and adapter
/// swaps; every finished answer of the healthy model must have the bits of the same request in a quiet engine.
void run_soak(const SoakOptions& options);

}  // namespace duet::bench
