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

// `tiles` whole row tiles, tile_bytes apart, from their packed bytes: decodes in registers, for each group anew. The
// codes of the next call begin at next_codes (to fetch them early). Overwrites acc float[rows][tiles][16].
using MultiplyPacked = void (*)(const uint8_t* codes, const uint8_t* weight_scales, size_t tile_bytes,
                                const uint8_t* next_codes, size_t k_blocks, const Mxfp6Element& element,
                                QuantisedGroup group, float* acc);

// For more rows than are worth decoding anew: decodes k blocks of a row tile to int16, vector v of block b at
// weights[(b * 16 + v) * 32], its lanes in any order, and adds decoded blocks to acc float[rows][16]. weight_scales
// float[block][16].
using DecodeBlocks = void (*)(const uint8_t* codes, size_t blocks, const Mxfp6Element& element, int16_t* weights);
using MultiplyDecoded = void (*)(const int16_t* weights, const float* weight_scales, size_t blocks,
                                 QuantisedGroup group, float* acc);

// Adds k_count values of k of `tiles` row tiles, tile_bytes apart, to acc float[rows][tiles][16]. The weights of the
// next call begin `next` bytes behind the end of these (to fetch them early).
using MultiplyFp16 = void (*)(const uint8_t* weights, size_t tile_bytes, size_t next, size_t k_count,
                              const float* values, float* acc);

// A function takes exactly as many row tiles as its `..._tiles` says. Where fewer are left, they are taken one by one,
// with tile_bytes = 0: all the tiles of the call are then one and the same, and the first result counts.
struct MatmulKernels {
  size_t most_rows;   // of one call, where they are all the rows
  size_t group_rows;  // of one call, where there are more; from half of it on, the numbers of tiles are all the same
  QuantiseRow quantise_row;
  size_t packed_tiles[kMostRows + 1];
  MultiplyPacked multiply_packed[kMostRows + 1];
  DecodeBlocks decode;  // nullptr: multiply_packed has all numbers of rows; else it is for calls of a single group
  MultiplyDecoded multiply_decoded[kMostRows + 1];
  size_t fp16_tiles[kMostRows + 1];
  MultiplyFp16 multiply_fp16[kMostRows + 1];
};

// Only those of an available instruction set may be used.
const MatmulKernels& matmul_kernels_scalar();
const MatmulKernels& matmul_kernels_avx2();
const MatmulKernels& matmul_kernels_avx512();
const MatmulKernels& matmul_kernels_avx512vnni();
const MatmulKernels& matmul_kernels_neon();

}  // namespace mxspec
