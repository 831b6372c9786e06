// exp and tanh of fixed operations, for any of the lanes: the same bits on every instruction set.
#pragma once

#include <limits>

namespace mxspec {
namespace {

// e^x for x <= 0, within 1.2 ulp; 0 below -86.6 (where the result nears the subnormal numbers), NaN for NaN.
// x = n ln 2 + r, |r| <= ln 2 / 2; the polynomial for e^r and the split of ln 2 are those of Cephes' expf.
template <class L>
typename L::Vector exp_negative(typename L::Vector x) {
  using V = typename L::Vector;
  const V magic = L::set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, to nearest even
  const V shifted = L::fma(x, L::set1(1.44269504f), magic);
  const V n = L::sub(shifted, magic);
  V r = L::fma(n, L::set1(-0.693359375f), x);
  r = L::fma(n, L::set1(2.12194440e-4f), r);
  V p = L::set1(1.9875691500e-4f);
  p = L::fma(p, r, L::set1(1.3981999507e-3f));
  p = L::fma(p, r, L::set1(8.3334519073e-3f));
  p = L::fma(p, r, L::set1(4.1665795894e-2f));
  p = L::fma(p, r, L::set1(1.6666665459e-1f));
  p = L::fma(p, r, L::set1(5.0000001201e-1f));
  p = L::add(L::fma(p, L::mul(r, r), r), L::set1(1.0f));
  // A product, not an addition to the exponent bits, so that a NaN stays one.
  return L::select(L::less(x, L::set1(-86.6f)), L::zero(), L::mul(p, L::power_of_two(shifted)));
}

// tanh x, within 4 ulp. The polynomial below 0.625 is that of Cephes' tanhf.
template <class L>
typename L::Vector tanh(typename L::Vector x) {
  using V = typename L::Vector;
  const V magnitude = L::max(x, L::sub(L::zero(), x));
  const V e = exp_negative<L>(L::mul(magnitude, L::set1(-2.0f)));
  const V large = L::div(L::sub(L::set1(1.0f), e), L::add(L::set1(1.0f), e));
  const V square = L::mul(x, x);
  V p = L::set1(-5.70498872745e-3f);
  p = L::fma(p, square, L::set1(2.06390887954e-2f));
  p = L::fma(p, square, L::set1(-5.37397155531e-2f));
  p = L::fma(p, square, L::set1(1.33314422036e-1f));
  p = L::fma(p, square, L::set1(-3.33332819422e-1f));
  const V small = L::fma(L::mul(p, square), x, x);
  const V signed_large = L::select(L::less(x, L::zero()), L::sub(L::zero(), large), large);
  return L::select(L::less(magnitude, L::set1(0.625f)), small, signed_large);
}

}  // namespace
}  // namespace mxspec
