#include "runtime/ops/kernels/activations.h"

#include <cmath>
#include <cstring>

namespace mxspec {
namespace {

constexpr size_t kBlock = 32;

bool all_finite(const float* values, size_t count) {
  bool finite = true;
  for (size_t i = 0; i < count; ++i) finite &= std::isfinite(values[i]);
  return finite;
}

}  // namespace

RowKind copy_row(const float* row, size_t k, size_t rows, float* values) {
  const size_t k_blocks = (k + kBlock - 1) / kBlock;
  const bool finite = all_finite(row, k);
  for (size_t block = 0; block < k_blocks; ++block) {
    float* out = values + block * rows * kBlock;
    const size_t left = k - block * kBlock;
    const size_t count = !finite ? 0 : left < kBlock ? left : kBlock;
    std::memcpy(out, row + block * kBlock, count * sizeof(float));
    std::memset(out + count, 0, (kBlock - count) * sizeof(float));
  }
  return finite ? RowKind::kOrdinary : RowKind::kNotFinite;
}

double quantise_extreme_block(const float* values, size_t count, bool int8, int16_t* q) {
  std::memset(q, 0, kBlock * sizeof(int16_t));
  double largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const double magnitude = std::fabs(static_cast<double>(values[i]));
    largest = magnitude > largest ? magnitude : largest;  // not fmax: GCC 12 for aarch64 ends in an internal error
  }
  if (largest == 0) return 0;
  double unit = largest / 127;
  if (!int8) {
    unit = std::ldexp(1.0, std::ilogb(largest) - 14);
    if (std::nearbyint(largest / unit) > 32767) unit *= 2;
  }
  for (size_t i = 0; i < count; ++i) {
    q[i] = static_cast<int16_t>(std::nearbyint(static_cast<double>(values[i]) / unit));
  }
  return unit;
}

}  // namespace mxspec
