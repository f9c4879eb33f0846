// SIMD kernels.
