// Rows of activations as the kernels read them.
//
// The m rows are cut into groups; a group of r rows is stored block by block, a block's rows side by side:
//   values  [k_block][r][32]   int16 (MXFP6) or float (fp16), zero beyond k; int16 in the order of k, but for AVX2,
//                              whose decoding leaves the two in the middle of each four swapped
//   scales  [k_block][r]       float (MXFP6): 2^e, the unit of the int16 values times the unit of the weights
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

// The int16 values of a block: x = q * 2^exponent with |q| <= 32767, from the exponent of the block's largest
// magnitude, after rounding that to 15 bits (so that 32767.7 goes one exponent up, not beyond the range).
//   bits of the largest magnitude  ->  biased exponent of it, rounded
inline constexpr uint32_t rounded_exponent(uint32_t magnitude_bits) { return (magnitude_bits + 0x100u) >> 23; }
inline constexpr int kQuantumBelowLargest = 14;  // 2^14 <= |q of the largest| < 2^15
inline constexpr uint32_t kNotFiniteBits = 0x7F800000u;
inline constexpr uint32_t kMagnitudeMask = 0x7FFFFFFFu;

// A row is ordinary when float(sum) * 2^e of each block can neither overflow nor lose bits: sum < 2^29, e >= -126 and
// e + 29 <= 127. unit_exponent: the weights' unit is 2^-unit_exponent.
inline constexpr uint32_t least_exponent(int unit_exponent) { return 1u + kQuantumBelowLargest + unit_exponent; }
inline constexpr uint32_t most_exponent(int unit_exponent) { return 225u + kQuantumBelowLargest + unit_exponent; }
inline constexpr uint32_t scale_bits(uint32_t exponent, int unit_exponent) {
  return (exponent - kQuantumBelowLargest - unit_exponent) << 23;
}
inline constexpr uint32_t inverse_quantum_bits(uint32_t exponent) {
  return (254u + kQuantumBelowLargest - exponent) << 23;
}

// Quantises row float[k] into its slot of a group of `rows` rows. A row that is not ordinary is stored as zeros.
using QuantiseRow = RowKind (*)(const float* row, size_t k, int unit_exponent, size_t rows, int16_t* q, float* scales);
RowKind quantise_row_scalar(const float* row, size_t k, int unit_exponent, size_t rows, int16_t* q, float* scales);
RowKind quantise_row_avx2(const float* row, size_t k, int unit_exponent, size_t rows, int16_t* q, float* scales);
RowKind quantise_row_avx512(const float* row, size_t k, int unit_exponent, size_t rows, int16_t* q, float* scales);
RowKind quantise_row_neon(const float* row, size_t k, int unit_exponent, size_t rows, int16_t* q, float* scales);

// What each QuantiseRow does once it knows the largest and the least exponent of the row's non-zero blocks.
RowKind finish_quantised_row(bool finite, uint32_t least, uint32_t most, int unit_exponent, size_t k_blocks,
                             size_t rows, int16_t* q, float* scales);

// Copies row float[k] into its slot of a group; kOrdinary or kNotFinite (stored as zeros).
RowKind copy_row(const float* row, size_t k, size_t rows, float* values);

// One block of an extreme row: the exponent, q int16[32]. values float[count], count <= 32.
int quantise_extreme_block(const float* values, size_t count, int16_t* q);

}  // namespace mxspec
