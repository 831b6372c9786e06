// The feed-forward of experts: the bits of its products, gates and sums one by one, on every instruction set, with any
// threads.
#include <cmath>

#include "runtime/ops/kernels/experts.h"
#include "runtime/ops/kernels/lanes/lane_kernels.h"
#include "tests/native/check.h"
#include "tests/native/matmul_case.h"

namespace mxspec::test {
namespace {

struct Case {
  ExpertsShape shape;
  ExpertsKind kind;
  std::vector<int64_t> chosen;
  std::vector<float> x, weights, gate_up_bias, down_bias;
  std::vector<uint8_t> gate_up, down;

  Case(const ExpertsShape& shape, const ExpertsKind& kind, std::mt19937& random) : shape(shape), kind(kind) {
    x = random_floats(shape.rows * shape.k, random);
    if (shape.rows > 4) {
      x[shape.k] = INFINITY;
      for (size_t i = 2 * shape.k; i < 3 * shape.k; ++i) x[i] *= 1e30f;
    }
    for (size_t i = 0; i < shape.rows * shape.top_k; ++i) {
      chosen.push_back(static_cast<int64_t>(i % 3 == 0 ? 1 : random() % shape.experts));
    }
    weights = random_floats(chosen.size(), random);
    gate_up_bias = random_floats(shape.experts * 2 * shape.inner, random);
    down_bias = random_floats(shape.experts * shape.n, random);
    gate_up = random_weights({0, shape.experts * 2 * shape.inner, shape.k}, kind.gate_up.format, random).packed;
    down = random_weights({0, shape.experts * shape.n, shape.inner}, kind.down.format, random).packed;
  }

  std::vector<float> run(Isa isa, size_t threads) const {
    const Routing routing(chosen.data(), shape);
    std::vector<float> out(shape.rows * shape.n, -12345.0f);
    std::vector<uint8_t> scratch;
    const ExpertsOperands operands{x.data(),         weights.data(), gate_up.data(), down.data(), gate_up_bias.data(),
                                   down_bias.data(), out.data()};
    const ExpertsCall call(shape, kind, operands, routing, isa, [&](size_t bytes) {
      scratch.resize(bytes + 1);
      return scratch.data() + 1;
    });
    const ParallelFor parallel = threads_of(threads);
    call.gate_up(parallel);
    call.down(parallel);
    return out;
  }

  // One product of one row at a time.
  std::vector<float> one_by_one() const {
    std::vector<float> out(shape.rows * shape.n);
    for (size_t row = 0; row < shape.rows; ++row) {
      std::vector<float> of_ranks;
      std::vector<size_t> ranks;
      for (size_t rank = 0; rank < shape.top_k; ++rank) {
        const auto expert = static_cast<size_t>(chosen[row * shape.top_k + rank]);
        const std::vector<float> a(x.begin() + static_cast<ptrdiff_t>(row * shape.k),
                                   x.begin() + static_cast<ptrdiff_t>((row + 1) * shape.k));
        std::vector<float> values = product(shape.gate_up(1), kind.gate_up, a, gate_up, gate_up_bias, expert);
        if (kind.alternating) {
          const std::vector<float> pairs = values;
          for (size_t i = 0; i < pairs.size(); ++i) values[i % 2 * shape.inner + i / 2] = pairs[i];
        }
        std::vector<float> inner(shape.inner);
        gate_function(kind.activation, Isa::kScalar)(values.data(), values.data() + shape.inner, shape.inner,
                                                     kind.constants, inner.data());
        const std::vector<float> d = product(shape.down(1), kind.down, inner, down, down_bias, expert);
        of_ranks.insert(of_ranks.end(), d.begin(), d.end());
        ranks.push_back(rank);
      }
      float* const sum = out.data() + row * shape.n;
      for (size_t i = 0; i < shape.n; ++i) {
        for (size_t rank = 0; rank < shape.top_k; ++rank) {
          sum[i] = std::fma(weights[row * shape.top_k + rank], of_ranks[rank * shape.n + i], sum[i]);
        }
      }
    }
    return out;
  }

  static std::vector<float> product(const MatmulShape& matrix, const MatmulKind& kind, const std::vector<float>& a,
                                    const std::vector<uint8_t>& packed, const std::vector<float>& bias, size_t expert) {
    const auto tiles = static_cast<ptrdiff_t>(matrix.row_tiles() * matrix.row_tile_bytes(kind.format));
    const auto first = static_cast<ptrdiff_t>(expert);
    const std::vector<uint8_t> of_expert(packed.begin() + first * tiles, packed.begin() + (first + 1) * tiles);
    const std::vector<float> bias_of_expert(bias.begin() + first * static_cast<ptrdiff_t>(matrix.n),
                                            bias.begin() + (first + 1) * static_cast<ptrdiff_t>(matrix.n));
    return MatmulCase{matrix, kind, a, of_expert, &bias_of_expert}.run(Isa::kScalar);
  }
};

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0 && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  }
  return a.size() == b.size();
}

void test_shapes() {
  std::mt19937 random(1);
  const ExpertsShape shapes[] = {{0, 2, 3, 32, 8, 16},    {1, 1, 2, 33, 8, 16},  {1, 4, 7, 96, 40, 48},
                                 {5, 2, 3, 70, 24, 80},   {9, 8, 5, 64, 32, 16}, {23, 3, 6, 130, 64, 112},
                                 {60, 4, 4, 100, 16, 32}, {3, 0, 3, 32, 8, 16}};
  size_t number = 0;
  for (const ExpertsShape& shape : shapes) {
    for (size_t i = 0; i < std::size(kKinds); ++i) {
      const auto activation = static_cast<GateActivation>(number % 3);
      const bool alternating = number++ % 2 == 1;
      const ExpertsKind kind{kKinds[i], kKinds[(i + 3) % std::size(kKinds)], activation, {}, alternating};
      const Case test(shape, kind, random);
      const std::vector<float> expected = test.one_by_one();
      CHECK(same(test.run(Isa::kScalar, 1), expected)) << "rows" << shape.rows << kind.gate_up.facts().name;
      const std::vector<float> scalar = test.run(Isa::kScalar, 1);
      for (const Isa isa : available_isas()) {
        for (const size_t threads : {1, 3}) {
          CHECK(same_bits(test.run(isa, threads), scalar))
              << isa_name(isa) << "rows" << shape.rows << kind.gate_up.facts().name << threads << "threads";
        }
      }
    }
  }
}

// Large enough to be cut into tasks, experts of one row beside those of many.
void test_threads() {
  std::mt19937 random(2);
  for (const MatmulKind& kind : kKinds) {
    Case test({50, 3, 9, 288, 200, 272}, {kind, kind, GateActivation::kSilu, {}}, random);
    const Isa isa = available_isas().back();
    const std::vector<float> expected = test.run(isa, 1);
    for (const size_t threads : {2, 3, 5}) CHECK(same_bits(test.run(isa, threads), expected)) << threads << "threads";
  }
}

}  // namespace
}  // namespace mxspec::test

int main() {
  mxspec::test::test_shapes();
  mxspec::test::test_threads();
  return mxspec::test::check_result();
}
