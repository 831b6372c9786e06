// out[m, n] = a[m, k] times the transpose of packed[n, k], plus bias: the product with packed weights.
//
// The packed layout is specified in docs/bundle.md; formats/native/ writes it. A row tile is 16 output rows:
//   MXFP6  k_blocks x 384 bytes of codes (each 16 rows x 32 k), then k_blocks x 16 scale bytes (E8M0)
//   fp16   k_blocks x 32 x 16 values, [k][row]
//
// The same bits come out for every instruction set, m, number of threads and blocking, because each output is one
// float32 accumulator and everything that is added to it is fixed, in this order:
//   MXFP6  for each block of 32 k:  acc = fmaf(float(sum) * 2^e, 2^(scale - 127), acc), where sum = the exact int32 sum
//          of q * w over the block, q = the row's values as int16 in units of their block's power of two, w = the
//          weights as integers in units of 1/16 (E3M2) or 1/8 (E2M3), and 2^e = the product of the two units; the inner
//          product is exact
//   fp16   for each k:  acc = fmaf(float(w), x, acc)
// then + bias. A row of a that holds NaN or infinity gives a row of NaN.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/ops/kernels/isa.h"
#include "runtime/ops/kernels/parallel_for.h"

namespace mxspec {

enum class WeightFormat { kFp16, kMxfp6E3m2, kMxfp6E2m3 };

inline constexpr size_t kTileRows = 16;         // output rows of a tile
inline constexpr size_t kBlock = 32;            // values of k that share a scale
inline constexpr size_t kMxfp6TileBytes = 384;  // 16 x 32 codes of 6 bits
inline constexpr size_t kFp16TileBytes = 32 * 16 * 2;
static_assert(kMxfp6TileBytes * 8 == kTileRows * kBlock * 6);

struct MatmulShape {
  size_t m, n, k;

  size_t row_tiles() const { return (n + kTileRows - 1) / kTileRows; }
  size_t k_blocks() const { return (k + kBlock - 1) / kBlock; }
  size_t row_tile_bytes(WeightFormat format) const {
    return k_blocks() * (format == WeightFormat::kFp16 ? kFp16TileBytes : kMxfp6TileBytes + kTileRows);
  }
};

struct MatmulOperands {
  const float* a;         // float[m, k]
  const uint8_t* packed;  // uint8[row_tiles, row_tile_bytes], any alignment
  const float* bias;      // float[n], or nullptr
  float* out;             // float[m, n]
};

// Bytes that matmul() wants as scratch, at any alignment.
size_t matmul_scratch_bytes(const MatmulShape& shape, WeightFormat format);

// `isa` must be available on this machine.
void matmul(const MatmulShape& shape, WeightFormat format, const MatmulOperands& operands, Isa isa, void* scratch,
            const ParallelFor& parallel);

}  // namespace mxspec
