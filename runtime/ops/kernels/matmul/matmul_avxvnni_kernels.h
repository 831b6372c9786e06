// The AVX2 kernels with the instructions of AVX-VNNI, which come in two encodings: its own and that of AVX-512 VL.
#pragma once

#include "runtime/ops/kernels/matmul/matmul_avx2_tiles.h"

namespace mxspec {
namespace {

template <class Vnni>
struct AddWords {
  static MXSPEC_INLINE void add(__m256i& sum, __m256i weights, __m256i x) { sum = Vnni::add_words(sum, weights, x); }
};

template <class Vnni>
struct AddBytes {
  static constexpr size_t kQuads = 8;
  static constexpr Starts kStarts = Starts::kSum;

  static MXSPEC_INLINE void add(__m256i& part, __m256i weights, __m256i x) { part = Vnni::add_bytes(part, weights, x); }
  static MXSPEC_INLINE __m256i sum(__m256i part) { return part; }
};

template <class Vnni>
constexpr MxKernelsByBits int16_kernels() {
  using Dot = AddWords<Vnni>;
  return {mx_kernels<4, Words<4>, Dot, 4, 4>(), mx_kernels<6, Words<6>, Dot, 4, 4>(),
          mx_kernels<8, Words<8>, Dot, 4, 4>()};
}

template <class Vnni>
constexpr MxKernelsByBits int8_kernels() {
  using Dot = AddBytes<Vnni>;
  return {mx_kernels<4, Bytes<4>, Dot, 8, 6>(), mx_kernels<6, Bytes<6>, Dot, 8, 6>(),
          mx_kernels<8, Bytes<8>, Dot, 8, 6>()};
}

}  // namespace
}  // namespace mxspec
