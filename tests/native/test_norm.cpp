// Addition and norm: every instruction set against double precision and against the scalar one, in buffers that end
// where the values end.
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "runtime/ops/kernels/norm.h"
#include "tests/native/check.h"

namespace {

using mxspec::Isa;

struct Outputs {
  std::vector<float> norm, sum;
};

struct Case {
  std::vector<float> x, residual, weight, bias;

  Case(size_t n, unsigned seed) : x(n), residual(n), weight(n), bias(n) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < n; ++i) x[i] = 2 + normal(random), residual[i] = 3 * normal(random);
    for (size_t i = 0; i < n; ++i) weight[i] = normal(random), bias[i] = normal(random);
  }

  Outputs run(mxspec::NormKind kind, Isa isa) const {
    const size_t n = x.size();
    Outputs out{std::vector<float>(n), std::vector<float>(n)};
    mxspec::norm_function(
        kind, isa)({x.data(), residual.data(), weight.data(), bias.data(), n, 1e-5f, out.norm.data(), out.sum.data()});
    return out;
  }

  // The norm of these sums alone, where nothing is added.
  std::vector<float> norm_of(const std::vector<float>& sum, mxspec::NormKind kind, Isa isa) const {
    std::vector<float> norm(sum.size());
    mxspec::norm_function(
        kind, isa)({sum.data(), nullptr, weight.data(), bias.data(), sum.size(), 1e-5f, norm.data(), nullptr});
    return norm;
  }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void check(size_t n, unsigned seed, mxspec::NormKind kind) {
  const bool layer = kind == mxspec::NormKind::kLayer;
  const Case row(n, seed);
  const Outputs scalar = row.run(kind, Isa::kScalar);
  double mean = 0, squares = 0;
  if (layer) {
    for (const float sum : scalar.sum) mean += sum / static_cast<double>(n);
  }
  for (const float sum : scalar.sum) squares += (sum - mean) * (sum - mean);
  for (size_t i = 0; i < n; ++i) {
    CHECK(scalar.sum[i] == row.x[i] + row.residual[i]) << "at" << i;
    const double scaled = (scalar.sum[i] - mean) / std::sqrt(squares / static_cast<double>(n) + 1e-5) * row.weight[i];
    const double exact = scaled + (layer ? row.bias[i] : 0);
    // A mean is rounded, and what is left of a value beside it and a bias: an error of the row, not of the value.
    const double allowed = layer ? 3e-6 * (1 + std::fabs(scaled)) : 1e-6 * std::fabs(exact);
    CHECK(std::fabs(scalar.norm[i] - exact) <= allowed) << n << "at" << i;
  }
  for (const Isa isa : mxspec::kAllIsas) {
    if (!mxspec::isa_available(isa)) continue;
    const Outputs out = row.run(kind, isa);
    CHECK(same_bits(out.norm, scalar.norm) && same_bits(out.sum, scalar.sum)) << isa_name(isa) << n;
    CHECK(same_bits(row.norm_of(scalar.sum, kind, isa), scalar.norm)) << isa_name(isa) << n;
  }
}

}  // namespace

int main() {
  // Of a few rows, the norms hide most other orders of the sum: each differs by less than a rounding of the scale.
  for (const size_t n : {1, 4, 15, 16, 17, 63, 64, 65, 100, 1003, 2048}) {
    for (unsigned seed = 0; seed < 10; ++seed) {
      check(n, seed, mxspec::NormKind::kRms);
      check(n, seed, mxspec::NormKind::kLayer);
    }
  }
  return mxspec::test::check_result();
}
