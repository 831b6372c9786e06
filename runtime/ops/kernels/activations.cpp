#include "runtime/ops/kernels/activations.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace mxspec {
namespace {

constexpr size_t kBlock = 32;

uint32_t largest_magnitude_bits(const float* values, size_t count) {
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, values + i, sizeof bits);
    bits &= kMagnitudeMask;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

}  // namespace

RowKind quantise_row_scalar(const float* row, size_t k, int unit_exponent, size_t rows, int16_t* q, float* scales) {
  uint32_t least = 255, most = 0;
  bool finite = true;
  const size_t k_blocks = (k + kBlock - 1) / kBlock;
  for (size_t block = 0; block < k_blocks; ++block) {
    const float* values = row + block * kBlock;
    const size_t count = k - block * kBlock < kBlock ? k - block * kBlock : kBlock;
    int16_t* out = q + block * rows * kBlock;
    const uint32_t magnitude = largest_magnitude_bits(values, count);
    finite &= magnitude < kNotFiniteBits;
    const uint32_t exponent = rounded_exponent(magnitude);
    const bool in_range = exponent >= least_exponent(unit_exponent) && exponent <= most_exponent(unit_exponent);
    if (magnitude != 0) {
      least = exponent < least ? exponent : least;
      most = exponent > most ? exponent : most;
    }
    std::memset(out, 0, kBlock * sizeof(int16_t));
    scales[block * rows] = 0.0f;
    if (!in_range) continue;  // zeros, or a row that will not be ordinary
    const float inverse = std::bit_cast<float>(inverse_quantum_bits(exponent));
    for (size_t i = 0; i < count; ++i) out[i] = static_cast<int16_t>(std::lrint(values[i] * inverse));
    scales[block * rows] = std::bit_cast<float>(scale_bits(exponent, unit_exponent));
  }
  return finish_quantised_row(finite, least, most, unit_exponent, k_blocks, rows, q, scales);
}

RowKind finish_quantised_row(bool finite, uint32_t least, uint32_t most, int unit_exponent, size_t k_blocks,
                             size_t rows, int16_t* q, float* scales) {
  if (finite && least >= least_exponent(unit_exponent) && most <= most_exponent(unit_exponent)) {
    return RowKind::kOrdinary;
  }
  for (size_t block = 0; block < k_blocks; ++block) {
    std::memset(q + block * rows * kBlock, 0, kBlock * sizeof(int16_t));
    scales[block * rows] = 0.0f;
  }
  return finite ? RowKind::kExtreme : RowKind::kNotFinite;
}

RowKind copy_row(const float* row, size_t k, size_t rows, float* values) {
  const size_t k_blocks = (k + kBlock - 1) / kBlock;
  const bool finite = largest_magnitude_bits(row, k) < kNotFiniteBits;
  for (size_t block = 0; block < k_blocks; ++block) {
    float* out = values + block * rows * kBlock;
    const size_t left = k - block * kBlock;
    const size_t count = !finite ? 0 : left < kBlock ? left : kBlock;
    std::memcpy(out, row + block * kBlock, count * sizeof(float));
    std::memset(out + count, 0, (kBlock - count) * sizeof(float));
  }
  return finite ? RowKind::kOrdinary : RowKind::kNotFinite;
}

int quantise_extreme_block(const float* values, size_t count, int16_t* q) {
  std::memset(q, 0, kBlock * sizeof(int16_t));
  double largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const double magnitude = std::fabs(static_cast<double>(values[i]));
    largest = magnitude > largest ? magnitude : largest;  // not fmax: GCC 12 for aarch64 ends in an internal error
  }
  if (largest == 0) return 0;
  int exponent = std::ilogb(largest) - kQuantumBelowLargest;
  if (std::nearbyint(std::ldexp(largest, -exponent)) > 32767) ++exponent;
  for (size_t i = 0; i < count; ++i) {
    q[i] = static_cast<int16_t>(std::nearbyint(std::ldexp(static_cast<double>(values[i]), -exponent)));
  }
  return exponent;
}

}  // namespace mxspec
