#include "runtime/ops/kernels/rotary.h"

#include <cstring>

namespace mxspec {
namespace {

// The entries i * kStep and i * kStep + apart of a head, for each i < half.
template <size_t kStep>
void rotate_head(const float* x, const float* cos, const float* sin, size_t half, size_t apart, float* out) {
  for (size_t i = 0; i < half; ++i) {
    const float low = x[i * kStep];
    const float high = x[i * kStep + apart];
    out[i * kStep] = low * cos[i] - high * sin[i];
    out[i * kStep + apart] = high * cos[i] + low * sin[i];
  }
}

}  // namespace

void rotate_heads(const float* x, const float* cos, const float* sin, size_t heads, size_t head_size, size_t rotary,
                  bool pairs, float* out) {
  const size_t half = rotary / 2;
  for (size_t head = 0; head < heads; ++head, x += head_size, out += head_size) {
    if (pairs) {
      rotate_head<2>(x, cos, sin, half, 1, out);
    } else {
      rotate_head<1>(x, cos, sin, half, half, out);
    }
    if (out != x && rotary < head_size) std::memcpy(out + rotary, x + rotary, (head_size - rotary) * sizeof(float));
  }
}

}  // namespace mxspec
