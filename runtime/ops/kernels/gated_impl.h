// The gates over any of the lanes (lanes_*.h). Included by one file an instruction set.
#pragma once

#include "runtime/ops/kernels/gated.h"
#include "runtime/ops/kernels/lanes_math.h"

namespace mxspec {
namespace {

template <class L>
struct Silu {
  using V = typename L::Vector;

  // By e^-|x|, which never overflows: x / (1 + e) where x >= 0, x e / (1 + e) where not. Within 3 ulp down to x = -86.
  static V apply(V x) {
    const V one = L::set1(1.0f);
    const V magnitude = L::max(x, L::sub(L::zero(), x));
    const V e = exp_negative<L>(L::sub(L::zero(), magnitude));
    return L::mul(x, L::div(L::select(L::less(x, L::zero()), e, one), L::add(one, e)));
  }
};

template <class L>
struct GeluTanh {
  using V = typename L::Vector;

  static V apply(V x) {
    constexpr float kRoot = 0.797884561f;  // sqrt(2 / pi)
    const V inner = L::mul(x, L::fma(L::mul(x, x), L::set1(kRoot * 0.044715f), L::set1(kRoot)));
    return L::mul(L::mul(L::set1(0.5f), x), L::add(L::set1(1.0f), tanh<L>(inner)));
  }
};

template <class L, class Activation>
void gate(const float* gate, const float* up, size_t count, float* out) {
  size_t i = 0;
  for (; i + 16 <= count; i += 16) L::store(out + i, L::mul(Activation::apply(L::load(gate + i)), L::load(up + i)));
  if (i == count) return;
  const size_t rest = count - i;
  L::store(out + i, L::mul(Activation::apply(L::load(gate + i, rest)), L::load(up + i, rest)), rest);
}

}  // namespace
}  // namespace mxspec
