// The weighted sum over any of the lanes (lanes_*.h). Included by lane_kernels.cpp.
#pragma once

#include <limits>

#include "runtime/ops/kernels/weighted_sum.h"

namespace mxspec {
namespace {

// Which of two NaN an operation gives depends on how it was compiled, so all are made one.
template <class L>
typename L::Vector one_nan(typename L::Vector v) {
  using V = typename L::Vector;
  const V infinity = L::set1(std::numeric_limits<float>::infinity());
  const V nan = L::set1(std::numeric_limits<float>::quiet_NaN());
  return L::select(L::less(v, infinity), v, L::select(L::less(L::sub(L::zero(), infinity), v), v, nan));
}

template <class L>
void weighted_sum(const WeightedRows& of, float* out) {
  using V = typename L::Vector;
  size_t i = 0;
  for (; i + 16 <= of.n; i += 16) {
    V acc = L::zero();
    for (size_t r = 0; r < of.count; ++r) {
      acc = L::fma(L::set1(of.weights[r]), L::load(of.values + of.rows[r] * of.n + i), acc);
    }
    L::store(out + i, one_nan<L>(acc));
  }
  if (i == of.n) return;
  V acc = L::zero();
  for (size_t r = 0; r < of.count; ++r) {
    acc = L::fma(L::set1(of.weights[r]), L::load(of.values + of.rows[r] * of.n + i, of.n - i), acc);
  }
  L::store(out + i, one_nan<L>(acc), of.n - i);
}

}  // namespace
}  // namespace mxspec
