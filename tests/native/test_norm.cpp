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
  std::vector<float> x, residual, weight;

  explicit Case(size_t n) : x(n), residual(n), weight(n) {
    std::mt19937 random(static_cast<unsigned>(n));
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < n; ++i) x[i] = normal(random), residual[i] = 3 * normal(random), weight[i] = normal(random);
  }

  Outputs run(Isa isa) const {
    const size_t n = x.size();
    Outputs out{std::vector<float>(n), std::vector<float>(n)};
    mxspec::norm_function(isa)({x.data(), residual.data(), weight.data(), n, 1e-5f, out.norm.data(), out.sum.data()});
    return out;
  }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void check(size_t n) {
  const Case row(n);
  const Outputs scalar = row.run(Isa::kScalar);
  double squares = 0;
  for (const float sum : scalar.sum) squares += static_cast<double>(sum) * sum;
  for (size_t i = 0; i < n; ++i) {
    CHECK(scalar.sum[i] == row.x[i] + row.residual[i]) << "at" << i;
    const double exact = scalar.sum[i] / std::sqrt(squares / static_cast<double>(n) + 1e-5) * row.weight[i];
    CHECK(std::fabs(scalar.norm[i] - exact) <= 1e-6 * std::fabs(exact)) << n << "at" << i;
  }
  for (const Isa isa : mxspec::kAllIsas) {
    if (!mxspec::isa_available(isa)) continue;
    const Outputs out = row.run(isa);
    CHECK(same_bits(out.norm, scalar.norm) && same_bits(out.sum, scalar.sum)) << isa_name(isa) << n;
  }
}

}  // namespace

int main() {
  for (const size_t n : {1, 4, 15, 16, 17, 63, 64, 65, 100, 1003, 2048}) check(n);
  return mxspec::test::check_result();
}
