// The innermost functions of the product: one table of them for each instruction set, all with the same results.
#pragma once

#include "runtime/ops/kernels/activations.h"
#include "runtime/ops/kernels/matmul/matmul.h"

namespace mxspec {

// The values of an MX element as the kernels look them up. INT8 needs no table.
struct WeightElement {
  int bits;
  int unit_exponent;                       // values are integers in units of 2^-unit_exponent
  int high_shift;                          // value(16 + i) = high[i] << high_shift
  int offset;                              // what makes a value of 8 bits an unsigned one
  alignas(64) int16_t table[64];           // by code; E2M1's 16 values four times, so that the upper bits do not count
  alignas(64) uint8_t unsigned_bytes[64];  // value + offset, where that fits a byte
  alignas(64) int8_t bytes[64];            // value, where that fits a byte
  alignas(16) uint8_t low[16];             // magnitude of the code i
  alignas(16) uint8_t high[16];            // for instruction sets that look up 16 bytes at a time
};

const WeightElement& weight_element(WeightFormat format);

inline constexpr size_t kMostRows = 16;  // activation rows of one call of a kernel
inline constexpr size_t kMostTiles = 4;  // row tiles of one call of a kernel

// Rows whose values lie in one group (activations.h), from some k block on.
struct QuantisedGroup {
  const uint8_t* q;  // int16 or int8
  const float* scales;
  const int32_t* starts;  // of int8
};

// `tiles` whole row tiles, tile_bytes apart, from their packed bytes: decodes in registers, for each group anew. The
// codes of the next call begin at next_codes (to fetch them early). Overwrites acc float[rows][tiles][16].
using MultiplyPacked = void (*)(const uint8_t* codes, const uint8_t* weight_scales, size_t tile_bytes,
                                const uint8_t* next_codes, size_t k_blocks, const WeightElement& element,
                                QuantisedGroup group, float* acc);

// For more rows than are worth decoding anew: decodes k blocks of a row tile to 512 int16 or bytes each, in any order,
// and adds decoded blocks to acc float[rows][16].
struct Decoded {
  void* weights;
  float* scales;  // float[block][16]: 2^(scale - 127); byte 0 is 2^-127, a subnormal
};
using DecodeBlocks = void (*)(const uint8_t* codes, const uint8_t* weight_scales, size_t blocks,
                              const WeightElement& element, Decoded to);
using MultiplyDecoded = void (*)(Decoded decoded, size_t blocks, QuantisedGroup group, float* acc);
// Before and after the products of a row tile, on the thread of these: to have registers that are not always there.
using AroundDecoded = void (*)();

// Adds k_count values of k of `tiles` row tiles, tile_bytes apart, to acc float[rows][tiles][16]. The weights of the
// next call begin `next` bytes after the end of these (to fetch them early).
using MultiplyFp16 = void (*)(const uint8_t* weights, size_t tile_bytes, size_t next, size_t k_count,
                              const float* values, float* acc);

// A product of MX weights of one width with int16 or int8 rows. A function takes exactly as many row tiles as
// `tiles` says. Where fewer are left, they are taken one by one, with tile_bytes = 0: all the tiles of the call are
// then one and the same, and the first result counts.
struct MxKernels {
  size_t most_rows;   // of one call, where they are all the rows; 0: there are no such kernels
  size_t group_rows;  // of one call, where there are more; from half of it on, the numbers of tiles are all the same
  Starts starts;      // of the sums of int8 rows
  size_t tiles[kMostRows + 1];
  MultiplyPacked multiply_packed[kMostRows + 1];
  DecodeBlocks decode;  // nullptr: multiply_packed has all numbers of rows; else it is for calls of a single group
  MultiplyDecoded multiply_decoded[kMostRows + 1];
  size_t decoded_tiles = 1;  // row tiles, decoded, that a group's rows are read for once; at most kMostTiles
  AroundDecoded begin_decoded = nullptr, end_decoded = nullptr;  // nullptr: nothing to do
};

struct Fp16Kernels {
  size_t most_rows, group_rows;  // as above
  size_t tiles[kMostRows + 1];
  MultiplyFp16 multiply[kMostRows + 1];
};

// Kernels of weights of 4, 6 and 8 bits.
struct MxKernelsByBits {
  MxKernels four, six, eight;

  constexpr const MxKernels& of(int bits) const { return bits == 4 ? four : bits == 6 ? six : eight; }
};

// The kernels of an instruction set.
struct MatmulKernels {
  const RowQuantisers& quantise;
  const MxKernelsByBits& int16;
  // Where there are none, int8 rows are stored as int16 and multiplied by the kernels of those: the sums are the same.
  const MxKernelsByBits& int8;
  const Fp16Kernels& fp16;
};

// The table of an available instruction set.
const MatmulKernels& matmul_kernels(Isa isa);

// That of AVX-VNNI in the encoding of AVX-512 with VNNI, which matmul_kernels() gives where AVX-VNNI's own is missing.
const MatmulKernels& avxvnni_kernels_of_avx512();

}  // namespace mxspec
