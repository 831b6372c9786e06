// The AVX2 kernels with the instructions of AVX-VNNI, which come in two encodings: its own and that of AVX-512 VL.
#pragma once

#include "runtime/ops/kernels/matmul_avx2_tiles.h"

namespace mxspec {
namespace {

template <class Dot>
constexpr MxKernelsByBits int16_kernels() {
  return {mx_kernels<4, Words<4>, Dot>(), mx_kernels<6, Words<6>, Dot>(), mx_kernels<8, Words<8>, Dot>()};
}

template <class Dot>
constexpr MxKernelsByBits int8_kernels() {
  return {mx_kernels<4, Bytes<4>, Dot>(), mx_kernels<6, Bytes<6>, Dot>(), mx_kernels<8, Bytes<8>, Dot>()};
}

}  // namespace
}  // namespace mxspec
