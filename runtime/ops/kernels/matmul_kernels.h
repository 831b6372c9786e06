// The innermost functions of the product: one table of them for each instruction set, all with the same results.
#pragma once

#include "runtime/ops/kernels/activations.h"
#include "runtime/ops/kernels/matmul.h"

namespace mxspec {

// An MXFP6 element type. Codes 0..31 are the magnitudes, 32..63 their negatives.
struct Mxfp6Element {
  int unit_exponent;  // table values are in units of 2^-unit_exponent
  int high_shift;     // value(16 + i) = high[i] << high_shift
  alignas(64) int16_t table[64];
  alignas(16) uint8_t low[16];   // value(i)
  alignas(16) uint8_t high[16];  // for instruction sets that look up 16 bytes at a time
};

const Mxfp6Element& mxfp6_element(WeightFormat format);

inline constexpr size_t kTileVectors = 16;  // of 32 codes each: rows x a pair of k
inline constexpr size_t kMostRows = 16;     // activation rows of one call of a kernel
inline constexpr size_t kMostTiles = 4;     // row tiles of one call of a kernel

// Rows whose values lie in one group (activations.h), from some k block on.
struct QuantisedGroup {
  const int16_t* q;
  const float* scales;
};

// A row tile from its packed bytes, for small m: decodes in registers. Overwrites acc float[rows][16].
using MultiplyPacked = void (*)(const uint8_t* codes, const uint8_t* weight_scales, size_t k_blocks,
                                const Mxfp6Element& element, QuantisedGroup group, float* acc);

// Decodes k blocks of one row tile to int16, vector v of block b at weights[(b * 16 + v) * tiles * 32].
using DecodeBlocks = void (*)(const uint8_t* codes, size_t blocks, const Mxfp6Element& element, size_t tiles,
                              int16_t* weights);

// Adds decoded blocks of `tiles` row tiles to acc float[rows][tiles][16]. weight_scales float[block][tiles][16].
using MultiplyDecoded = void (*)(const int16_t* weights, const float* weight_scales, size_t blocks,
                                 QuantisedGroup group, float* acc);

// Adds k_count values of k of `tiles` row tiles, tile_bytes apart, to acc float[rows][tiles][16].
using MultiplyFp16 = void (*)(const uint8_t* weights, size_t tile_bytes, size_t k_count, const float* values,
                              float* acc);

struct MatmulKernels {
  QuantiseRow quantise_row;
  size_t packed_rows;  // most rows of multiply_packed; 0: there is none
  MultiplyPacked multiply_packed[kMostRows + 1];
  DecodeBlocks decode;
  size_t decoded_rows, decoded_tiles;                  // most rows, and tiles (or 1), of multiply_decoded
  MultiplyDecoded multiply_decoded[2][kMostRows + 1];  // [0]: one tile; [1]: decoded_tiles
  size_t fp16_rows;
  size_t fp16_tiles[kMostRows + 1];              // tiles (or 1) of multiply_fp16 for so many rows
  MultiplyFp16 multiply_fp16[2][kMostRows + 1];  // [0]: one tile; [1]: fp16_tiles
};

// Only those of an available instruction set may be used.
const MatmulKernels& matmul_kernels_scalar();
const MatmulKernels& matmul_kernels_avx2();
const MatmulKernels& matmul_kernels_avx512();
const MatmulKernels& matmul_kernels_avx512vnni();

}  // namespace mxspec
