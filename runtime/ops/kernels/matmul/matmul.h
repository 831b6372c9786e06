// out[m, n] = a[m, k] times the transpose of packed[n, k], plus bias: the product with packed weights.
//
// The packed layout is specified in docs/formats.md; formats/native/ writes it. A row tile is 16 output rows:
//   MX     k_blocks x the codes of a tile (16 rows x 32 k), then k_blocks x 16 scale bytes (E8M0)
//   fp16   k_blocks x 32 x 16 values, [k][row]
//
// The same bits come out for every instruction set, m, number of threads and blocking, because each output is one
// float32 accumulator and everything that is added to it is fixed, in this order:
//   MX     for each block of 32 k:  acc = fmaf(float(sum) * scale, 2^(weight scale - 127), acc), where sum = the exact
//          int32 sum of q * w over the block, q = the row's values as integers, w = the weights as integers in units of
//          their element's step, and scale = the unit of the row's block times that of the weights (activations.h)
//   fp16   for each k:  acc = fmaf(float(w), x, acc)
// then + bias. A row of a that holds NaN or infinity gives a row of NaN.
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/native/isa.h"
#include "formats/native/weight_formats.h"
#include "runtime/ops/kernels/parallel_for.h"

namespace mxspec {

using formats::WeightFormat;

// What a product with MX weights makes of its rows.
enum class Activations : int { kInt16, kInt8 };

struct MatmulKind {
  WeightFormat format;
  Activations activations = Activations::kInt16;

  const formats::WeightFormatFacts& facts() const { return formats::facts_of(format); }
  bool mx() const { return format != WeightFormat::kFp16Tiles; }
  bool possible() const { return activations == Activations::kInt16 || facts().takes_int8(); }
};

inline constexpr size_t kTileRows = formats::kTileRows;  // output rows of a tile
inline constexpr size_t kBlock = formats::kBlock;        // values of k that share a scale
inline constexpr size_t kFp16TileBytes = formats::kHalfTileBytes;

struct MatmulShape {
  size_t m, n, k;

  size_t row_tiles() const { return (n + kTileRows - 1) / kTileRows; }
  size_t k_blocks() const { return (k + kBlock - 1) / kBlock; }
  size_t row_tile_bytes(WeightFormat format) const {
    const formats::WeightFormatFacts& facts = MatmulKind{format}.facts();
    return k_blocks() * static_cast<size_t>(facts.tile_code_bytes() + facts.tile_scale_bytes());
  }
};

struct MatmulOperands {
  const float* a;                // float[m, k]
  const uint8_t* packed;         // uint8[row_tiles, row_tile_bytes], any alignment
  const float* bias;             // float[n], or nullptr
  float* out;                    // float[m, n]
  const size_t* rows = nullptr;  // of a, which may have more: m of them, in the order of the rows of out
};

// Bytes that matmul() wants as scratch, at any alignment.
size_t matmul_scratch_bytes(const MatmulShape& shape, const MatmulKind& kind);

// `isa` must be available on this machine, and the kind possible.
void matmul(const MatmulShape& shape, const MatmulKind& kind, const MatmulOperands& operands, Isa isa, void* scratch,
            const ParallelFor& parallel);

}  // namespace mxspec
