#include "runtime/ops/kernels/rotary.h"

#include <cstring>

namespace mxspec {

void rotate_heads(const float* x, const float* cos, const float* sin, size_t heads, size_t head_size, size_t rotary,
                  bool pairs, float* out) {
  const size_t half = rotary / 2, step = pairs ? 2 : 1, apart = pairs ? 1 : half;
  for (size_t head = 0; head < heads; ++head, x += head_size, out += head_size) {
    for (size_t i = 0; i < half * step; i += step) {
      const float low = x[i];
      const float high = x[i + apart];
      out[i] = low * cos[i] - high * sin[i];
      out[i + apart] = high * cos[i + apart] + low * sin[i + apart];
    }
    if (out != x && rotary < head_size) std::memcpy(out + rotary, x + rotary, (head_size - rotary) * sizeof(float));
  }
}

}  // namespace mxspec
