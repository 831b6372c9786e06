// Rows of activations as the kernels read them.
//
// The m rows are cut into groups; a group of r rows is stored block by block, a block's rows side by side:
//   values  [k_block][r][32]   int16 or int8 (MX) or float (fp16), zero beyond k. int8, and the int16 of AVX2, have the
//                              two in the middle of each four swapped, as the bytes of a tile have
//   scales  [k_block][r]       float (MX): the unit of the integers times the unit of the weights
//   starts  [k_block][r][..]   int32 (int8): what the sums of a block begin with, to undo the offset of the weights
// Which rows share a group changes where a value lies, never the value.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mxspec {

// m rows cut into groups of at most `most` rows, as equal as can be.
struct RowGroups {
  size_t m, count;

  RowGroups(size_t m, size_t most) : m(m), count((m + most - 1) / most) {}
  size_t first(size_t group) const { return group * (m / count) + (group < m % count ? group : m % count); }
  size_t rows(size_t group) const { return m / count + (group < m % count ? 1 : 0); }
};

enum class RowKind : uint8_t {
  kOrdinary,
  kExtreme,  // a block so large or small that its exponent does not fit the fast path: multiplied by exact scalar code
  kNotFinite,  // holds NaN or infinity: its outputs are NaN
};

// What a kernel's sums of int8 begin with: -offset * the sum of the values. Where it adds up in int16, it is a pair of
// int16: of the first two values of each four, as they lie, and of the other two.
enum class Starts : uint8_t {
  kNone,       // its weights have no offset
  kSum,        // an int32
  kPair,       // a pair, of the whole block
  kFourPairs,  // a pair of each quarter
};
inline constexpr size_t kMostStarts = 4;
constexpr size_t starts_of_block(Starts starts) {
  return starts == Starts::kNone ? 0 : starts == Starts::kFourPairs ? kMostStarts : 1;
}

// The integers q of a block of 32 values x.
//   int16  x = q * 2^e, |q| <= 32767, e from the exponent of the largest magnitude, after rounding that to 15 bits (so
//          that 32767.7 goes one exponent up, not beyond the range)
//   int8   q = round(x * (127 / largest)), to nearest even, x = q * largest / 127
// A row is ordinary when no float32 on the way can overflow or be subnormal: neither the factors here, nor float(sum) *
// scale, sum < 2^29.
struct QuantisationRule {
  bool int8;          // 127 steps, else 15 bits
  int unit_exponent;  // the weights' unit is 2^-unit_exponent
  int offset;         // what the kernel adds to the weights, unless
  Starts starts;      // there are none
};

// Where a row's block 0 goes in its group of `rows` rows. q is of int16, or, in a quantiser of bytes, of int8.
struct RowSlot {
  void* q;
  float* scales;
  int32_t* starts;  // of bytes only
  size_t rows;
};

// Quantises row float[k] into its slot. A row that is not ordinary is stored as zeros.
using QuantiseRow = RowKind (*)(const float* row, size_t k, const QuantisationRule& rule, RowSlot slot);

struct RowQuantisers {
  QuantiseRow words, bytes;  // bytes: nullptr where no kernel wants them
};

// Copies row float[k] into its slot of a group; kOrdinary or kNotFinite (stored as zeros).
RowKind copy_row(const float* row, size_t k, size_t rows, float* values);

// One block of an extreme row: q int16[32] and its unit. values float[count], count <= 32.
double quantise_extreme_block(const float* values, size_t count, bool int8, int16_t* q);

}  // namespace mxspec
