#include "runtime/ops/attention/qkv_rows.h"

#include <vector>

#include "runtime/ops/kernels/rotary.h"

namespace mxspec {

void QkvRows::take(const QkvPart& part, int64_t row) const {
  const int64_t turned = part.rotated ? rotary : 0;
  for (int64_t run = 0; run < part.runs; ++run) {
    const float* from = qkv + row * width + part.start + run * part.stride;
    if (part.norm != nullptr) from = norm(part, from);
    float* const to = part.to + (row * part.runs + run) * part.heads * head_size;
    rotate_heads(from, cos + row * turned / 2, sin + row * turned / 2, part.heads, head_size, turned, pairs, to);
  }
}

// The normed run, in the calling thread's memory until the next one.
const float* QkvRows::norm(const QkvPart& part, const float* run) const {
  const size_t values = static_cast<size_t>(part.heads * head_size);
  thread_local std::vector<float> normed;
  if (normed.size() < values) normed.resize(values);
  NormRow row = {
      .x = nullptr,
      .residual = nullptr,
      .weight = part.norm,
      .bias = nullptr,
      .n = static_cast<size_t>(part.norm_size),
      .epsilon = norm_epsilon,
      .norm = nullptr,
      .sum = nullptr,
  };
  for (size_t i = 0; i < values; i += row.n) {
    row.x = run + i;
    row.norm = normed.data() + i;
    norm_row(row);
  }
  return normed.data();
}

}  // namespace mxspec
