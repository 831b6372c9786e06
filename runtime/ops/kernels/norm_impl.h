// The norm over any of the lanes (lanes_*.h). Included by one file an instruction set.
#pragma once

#include <cmath>

#include "runtime/ops/kernels/norm_kernels.h"

namespace mxspec {
namespace {

template <class L>
void norm_row(const NormRow& row) {
  using V = typename L::Vector;
  const size_t whole = row.n / 16 * 16, rest = row.n - whole;
  // Vector i goes to sum i % 4: four chains, so that the adds do not wait for each other.
  V squares[4] = {L::zero(), L::zero(), L::zero(), L::zero()};
  const auto add = [&](size_t i, V x, V residual) {
    const V sum = L::add(x, residual);
    squares[i / 16 % 4] = L::fma(sum, sum, squares[i / 16 % 4]);
    return sum;
  };
  size_t i = 0;
  for (; i + 64 <= whole; i += 64) {
    for (size_t j = i; j < i + 64; j += 16)
      L::store(row.sum + j, add(j, L::load(row.x + j), L::load(row.residual + j)));
  }
  for (; i < whole; i += 16) L::store(row.sum + i, add(i, L::load(row.x + i), L::load(row.residual + i)));
  if (rest != 0) L::store(row.sum + i, add(i, L::load(row.x + i, rest), L::load(row.residual + i, rest)), rest);

  const float total = L::sum(L::add(L::add(squares[0], squares[1]), L::add(squares[2], squares[3])));
  const V scale = L::set1(1.0f / std::sqrt(total / static_cast<float>(row.n) + row.epsilon));
  for (i = 0; i < whole; i += 16) {
    L::store(row.norm + i, L::mul(L::mul(L::load(row.sum + i), scale), L::load(row.weight + i)));
  }
  if (rest != 0) {
    L::store(row.norm + i, L::mul(L::mul(L::load(row.sum + i, rest), scale), L::load(row.weight + i, rest)), rest);
  }
}

}  // namespace
}  // namespace mxspec
