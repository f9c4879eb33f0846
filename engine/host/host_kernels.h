#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/host/kv_view.h"
#include "engine/weights.h"

/// The host backend's kernels: SIMD by Highway, the instruction set chosen when the program runs. All maths is float32;
/// weights are unpacked in registers and activations are never quantised.
///
/// Every output is computed in an order that depends on its own inputs only, not on how many tokens or rows a call has.
/// So a token in a batch gives the bits it gives alone, and a prompt in chunks those of the whole prompt.
namespace duet::host {

/// "AVX3", "AVX2", "SSE4", "NEON", ...
const char* instruction_set_name();

// ---- matrices ----

/// How the kernel of a matrix reads its activations. A packed row is `packed_columns` floats long, zeros at the end.
enum class Packing : std::uint8_t {
  natural,  ///< As they are.
  nibbles   ///< In the order in which a register of 4-bit codes is unpacked (blocks that line up with rows only).
};
Packing packing_of(const Matrix& weight);
std::int64_t packed_columns(std::int64_t columns);
void pack(Packing packing, const float* x, std::int64_t columns, float* packed);

/// Some rows of Y = X W^T: y[t * y_stride + r] = W[r] . x_t for first_row <= r < last_row.
///   weight  [rows, columns], any storage, block size and shape; blocks that cross row ends take a slower way
///   packed  [tokens, packed_columns(columns)], packed by packing_of(weight)
/// Error: at most (columns + 8) * eps32 * sum |w x|.
void matmul(const Matrix& weight, const float* packed, std::int64_t tokens, std::int64_t first_row,
            std::int64_t last_row, float* y, std::int64_t y_stride);

/// y[r] += scale * (B[r] . u + c[r]) for first_row <= r < last_row.
///   b  [rows, rank] f32, f16 or bf16    u  [rank]    c  [rows] or null
void add_lora(const Matrix& b, const float* u, const float* c, float scale, std::int64_t first_row,
              std::int64_t last_row, float* y);

// ---- vectors ----

/// y = (offset + gamma) * x / sqrt(mean(x^2) + epsilon), all [size]; x and y may be the same. False, and y all NaN,
/// when some x is not finite.
bool rms_norm(const float* x, const float* gamma, std::int64_t size, float epsilon, float* y, float offset = 0.0F);

/// x = scale * x / sqrt(sum(x^2) + epsilon), [size].
void normalise_length(float* x, std::int64_t size, float epsilon, float scale);

/// x = x / (1 + exp(-x)), [size].
void silu(float* x, std::int64_t size);

/// x = x / (1 + exp(-gate)), both [size].
void gate_by_sigmoid(float* x, const float* gate, std::int64_t size);

/// gate = gate / (1 + exp(-gate)) * up, [size].
void swiglu(float* gate, const float* up, std::int64_t size);

/// Rotates halves: (x[i], x[i + n/2]) by the angle of (cosine[i], sine[i]), i < n/2; [size].
void rotate(float* x, const float* cosine, const float* sine, std::int64_t size);

bool all_finite(const float* x, std::int64_t size);

// ---- attention ----

constexpr int kMostHeadsPerAttention = 4;

/// Softmax attention of `heads` neighbouring query heads (at most kMostHeadsPerAttention) that share one KV head:
/// out_h = sum_p softmax_p(scale * q_h . k_p) v_p over first_position <= p < last_position.
///   q, out  [heads, head_size]
void attend(const float* q, int heads, const KvView& kv, int layer, int kv_head, std::int64_t first_position,
            std::int64_t last_position, float scale, float* out);

// ---- Gated DeltaNet ----

/// One token of the gated delta rule (arXiv:2412.06464) on one value head:
///   S <- decay S;  S <- S + k (rate (v - S^T k))^T;  out = S^T q
///   memory  S [key_size, value_size]    query, key  [key_size]    value, out  [value_size]
void delta_rule(float* memory, const float* query, const float* key, const float* value, float decay, float rate,
                std::int64_t key_size, std::int64_t value_size, float* out);

}  // namespace duet::host
