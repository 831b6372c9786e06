// Gated linear units: every instruction set against double precision and against the scalar one, in buffers that end
// where the values end.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "runtime/ops/kernels/gated.h"
#include "tests/native/check.h"

namespace {

using mxspec::GateActivation;
using mxspec::Isa;

constexpr mxspec::GateConstants kConstants{1.25f, 3.0f};

double gated(GateActivation activation, double x, double up) {
  if (activation == GateActivation::kClampedSwiGlu) {
    const double limit = kConstants.limit, gate = std::min(x, limit);
    return (std::clamp(up, -limit, limit) + 1) * gate / (1 + std::exp(-kConstants.alpha * gate));
  }
  const double inner = std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
  return up * x / (1 + std::exp(activation == GateActivation::kSilu ? -x : -2 * inner));
}

std::vector<float> run(GateActivation activation, Isa isa, const std::vector<float>& gate,
                       const std::vector<float>& up) {
  std::vector<float> out(gate.size());
  mxspec::gate_function(activation, isa)(gate.data(), up.data(), gate.size(), kConstants, out.data());
  return out;
}

void check(GateActivation activation, size_t count) {
  std::mt19937 random(static_cast<unsigned>(count));
  std::normal_distribution<float> normal(0, 4);
  std::vector<float> gate(count), up(count);
  for (size_t i = 0; i < count; ++i) gate[i] = normal(random), up[i] = normal(random);
  if (count > 4) gate[1] = INFINITY, gate[2] = NAN, gate[3] = -100;
  const std::vector<float> scalar = run(activation, Isa::kScalar, gate, up);
  for (size_t i = 0; i < count; ++i) {
    if (!std::isfinite(gate[i])) continue;
    const double error = std::fabs(scalar[i] - gated(activation, gate[i], up[i]));
    CHECK(error <= 4e-7 * std::fabs(gate[i]) * (std::fabs(up[i]) + 1)) << "at" << i << "gate" << gate[i];
  }
  for (const Isa isa : mxspec::kAllIsas) {
    if (!mxspec::isa_available(isa) || count == 0) continue;
    const std::vector<float> out = run(activation, isa, gate, up);
    CHECK(std::memcmp(out.data(), scalar.data(), count * sizeof(float)) == 0) << isa_name(isa) << count;
  }
}

}  // namespace

int main() {
  for (const GateActivation activation :
       {GateActivation::kSilu, GateActivation::kGeluTanh, GateActivation::kClampedSwiGlu}) {
    for (const size_t count : {0, 1, 15, 16, 17, 33, 1000}) check(activation, count);
  }
  return mxspec::test::check_result();
}
