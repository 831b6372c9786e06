// The norms over any of the lanes (lanes_*.h). Included by lane_kernels.cpp.
#pragma once

#include <cmath>

#include "runtime/ops/kernels/norm.h"

namespace mxspec {
namespace {

// A vector of which `count` lanes are there; 16 is known where it is compiled, and takes the plain load.
template <class L>
typename L::Vector load(const float* from, size_t count) {
  return count == 16 ? L::load(from) : L::load(from, count);
}

template <class L>
void store(float* to, typename L::Vector v, size_t count) {
  count == 16 ? L::store(to, v) : L::store(to, v, count);
}

// body(i, the vector of x from i on, how many of its lanes are there) for a row of n values.
template <class L, class Body>
void each_vector(const float* x, size_t n, const Body& body) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) body(i, L::load(x + i), size_t{16});
  if (i < n) body(i, L::load(x + i, n - i), n - i);
}

// The sum over a row of what `add` adds to a partial sum for each vector.
template <class L, class Add>
float total(const float* x, size_t n, const Add& add) {
  using V = typename L::Vector;
  // Vector i goes to sum i % 4: four chains, so that the adds do not wait for each other.
  V sums[4] = {L::zero(), L::zero(), L::zero(), L::zero()};
  size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    for (size_t j = 0; j < 4; ++j) sums[j] = add(sums[j], L::load(x + i + j * 16), 16);
  }
  each_vector<L>(x + i, n - i, [&](size_t j, V v, size_t count) { sums[j / 16] = add(sums[j / 16], v, count); });
  return L::sum(L::add(L::add(sums[0], sums[1]), L::add(sums[2], sums[3])));
}

template <class L>
const float* add_residual(const NormRow& row) {
  if (row.residual == nullptr) return row.x;
  each_vector<L>(row.x, row.n, [&](size_t i, typename L::Vector v, size_t count) {
    store<L>(row.sum + i, L::add(v, load<L>(row.residual + i, count)), count);
  });
  return row.sum;
}

template <class L>
void rms_norm_row(const NormRow& row) {
  using V = typename L::Vector;
  const float* const x = add_residual<L>(row);
  const float squares = total<L>(x, row.n, [](V sum, V v, size_t) { return L::fma(v, v, sum); });
  const V scale = L::set1(1.0f / std::sqrt(squares / static_cast<float>(row.n) + row.epsilon));
  each_vector<L>(x, row.n, [&](size_t i, V v, size_t count) {
    store<L>(row.norm + i, L::mul(L::mul(v, scale), load<L>(row.weight + i, count)), count);
  });
}

// The mean first, then the squares of what is left: their difference would lose all digits of a row far from zero.
template <class L>
void layer_norm_row(const NormRow& row) {
  using V = typename L::Vector;
  const float* const x = add_residual<L>(row);
  const float n = static_cast<float>(row.n);
  const V mean = L::set1(total<L>(x, row.n, [](V sum, V v, size_t) { return L::add(sum, v); }) / n);
  const float squares = total<L>(x, row.n, [&](V sum, V v, size_t count) {
    V rest = L::sub(v, mean);
    if (count < 16) rest = L::select(L::range(0, count), rest, L::zero());
    return L::fma(rest, rest, sum);
  });
  const V scale = L::set1(1.0f / std::sqrt(squares / n + row.epsilon));
  each_vector<L>(x, row.n, [&](size_t i, V v, size_t count) {
    const V norm = L::mul(L::sub(v, mean), scale);
    store<L>(row.norm + i, L::fma(norm, load<L>(row.weight + i, count), load<L>(row.bias + i, count)), count);
  });
}

}  // namespace
}  // namespace mxspec
