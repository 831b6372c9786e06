// The gates over any of the lanes (lanes_*.h). Included by lane_kernels.cpp.
#pragma once

#include "runtime/ops/kernels/gated.h"
#include "runtime/ops/kernels/lanes/lanes_math.h"

namespace mxspec {
namespace {

// x / (1 + e^-z), by e^-|z|, which never overflows: x / (1 + e) where z >= 0, x e / (1 + e) where not. Within 3 ulp
// down to z = -86.
template <class L>
typename L::Vector times_sigmoid(typename L::Vector x, typename L::Vector z) {
  using V = typename L::Vector;
  const V one = L::set1(1.0f);
  const V magnitude = L::max(z, L::sub(L::zero(), z));
  const V e = exp_negative<L>(L::sub(L::zero(), magnitude));
  return L::mul(x, L::div(L::select(L::less(z, L::zero()), e, one), L::add(one, e)));
}

template <class L>
struct Silu {
  using V = typename L::Vector;

  static V apply(V gate, V up, const GateConstants&) { return L::mul(times_sigmoid<L>(gate, gate), up); }
};

template <class L>
struct GeluTanh {
  using V = typename L::Vector;

  static V apply(V x, V up, const GateConstants&) {
    constexpr float kRoot = 0.797884561f;  // sqrt(2 / pi)
    const V inner = L::mul(x, L::fma(L::mul(x, x), L::set1(kRoot * 0.044715f), L::set1(kRoot)));
    const V gelu = L::mul(L::mul(L::set1(0.5f), x), L::add(L::set1(1.0f), tanh<L>(inner)));
    return L::mul(gelu, up);
  }
};

template <class L>
struct ClampedSwiGlu {
  using V = typename L::Vector;

  static V apply(V gate, V up, const GateConstants& constants) {
    const V limit = L::set1(constants.limit), least = L::set1(-constants.limit);
    gate = L::select(L::less(limit, gate), limit, gate);  // NaN stays NaN
    up = L::select(L::less(limit, up), limit, L::select(L::less(up, least), least, up));
    const V glu = times_sigmoid<L>(gate, L::mul(L::set1(constants.alpha), gate));
    return L::mul(L::add(up, L::set1(1.0f)), glu);
  }
};

template <class L, class Gate>
void gate(const float* gate, const float* up, size_t count, const GateConstants& constants, float* out) {
  size_t i = 0;
  for (; i + 16 <= count; i += 16) L::store(out + i, Gate::apply(L::load(gate + i), L::load(up + i), constants));
  if (i == count) return;
  const size_t rest = count - i;
  L::store(out + i, Gate::apply(L::load(gate + i, rest), L::load(up + i, rest), constants), rest);
}

}  // namespace
}  // namespace mxspec
