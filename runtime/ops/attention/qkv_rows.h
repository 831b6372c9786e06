// Queries, keys and values out of the rows of a fused product.
#pragma once

#include <cstdint>

#include "runtime/ops/kernels/norm.h"

namespace mxspec {

// Queries, keys or values of a row: `runs` times `heads` heads side by side, the first at `start`, `stride` values from
// one run to the next. Of 4 queries and 2 key-value heads, q0 q1 q2 q3 k0 k1 v0 v1 has one run of each; interleaved,
// q0 q1 k0 v0 q2 q3 k1 v1 has two.
struct QkvPart {
  int64_t start, runs, heads, stride;
  bool rotated;
  float* to;                    // [rows, runs * heads, head_size]
  const float* norm = nullptr;  // weight of the norm of norm_size values of a run at a time
  int64_t norm_size = 0;
};

// All rows, and what norms and rotates them.
struct QkvRows {
  const float* qkv;  // [rows, width]
  int64_t width, head_size;
  const float* cos;  // [rows, rotary / 2], like sin
  const float* sin;
  int64_t rotary;  // 0: no rotation
  bool pairs;      // how it rotates
  NormFunction norm_row;
  float norm_epsilon;

  void take(const QkvPart& part, int64_t row) const;

 private:
  const float* norm(const QkvPart& part, const float* run) const;
};

}  // namespace mxspec
