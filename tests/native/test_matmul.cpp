// The product with packed weights: right, and the same bits on every instruction set, for every m and thread count.
#include <algorithm>
#include <cmath>

#include "tests/native/check.h"
#include "tests/native/matmul_case.h"

namespace mxspec::test {
namespace {

// |error| of one output, in units of the sum of |w| * largest |x| of the block: half a step of 15-bit activations,
// which is 2^-15 of the block's largest magnitude, plus the float32 sums, 2^-24 for each of the two roundings of each
// block.
// Of int8, half of 1/127.
double mx_bound(size_t k_blocks, bool int8) {
  return (int8 ? 1 / 253.9 : 0x1p-15) + 2.0 * static_cast<double>(k_blocks + 1) * 0x1p-24;
}
// fp16: one rounding for each k.
double fp16_bound(size_t k) { return static_cast<double>(k + 1) * 0x1p-24; }

void check_against_float64(const MatmulCase& test, const std::vector<double>& weights, const std::vector<float>& out) {
  const auto [m, n, k] = test.shape;
  const bool fp16 = !test.kind.mx();
  for (size_t row = 0; row < m; ++row) {
    for (size_t column = 0; column < n; ++column) {
      double expected = test.bias ? (*test.bias)[column] : 0.0, weight = std::fabs(expected);
      for (size_t block = 0; block < k; block += 32) {
        double largest = 0, magnitude = 0;
        for (size_t i = block; i < std::min(k, block + 32); ++i) {
          const double x = test.a[row * k + i], w = weights[column * k + i];
          expected += w * x;
          largest = std::max(largest, std::fabs(x));
          magnitude += std::fabs(w) * (fp16 ? std::fabs(x) : 1.0);
        }
        weight += fp16 ? magnitude : magnitude * largest;
      }
      const double bound = weight * (fp16 ? fp16_bound(k) : mx_bound(test.shape.k_blocks(), is_int8(test.kind)));
      const double error = std::fabs(out[row * n + column] - expected);
      CHECK(error <= bound) << text_of(test.shape, test.kind, Isa::kScalar) << "row" << row << "column" << column
                            << "got" << out[row * n + column] << "expected" << expected << "bound" << bound;
    }
  }
}

const MatmulShape kShapes[] = {
    {1, 1, 1},    {1, 16, 32},  {1, 17, 33},   {2, 48, 64},    {3, 31, 95},    {4, 80, 320},  {5, 64, 31},
    {6, 33, 257}, {7, 96, 128}, {8, 50, 300},  {9, 16, 512},   {10, 70, 64},   {11, 129, 96}, {12, 32, 288},
    {13, 20, 65}, {14, 64, 64}, {15, 18, 352}, {16, 100, 256}, {17, 40, 260},  {19, 33, 32},  {24, 16, 544},
    {25, 47, 70}, {37, 64, 96}, {61, 17, 40},  {200, 35, 272}, {385, 48, 290},
};

void test_every_isa() {
  std::mt19937 random(1);
  for (const MatmulShape& shape : kShapes) {
    for (const MatmulKind& kind : kKinds) {
      const Weights weights = random_weights(shape, kind.format, random);
      const std::vector<float> a = random_floats(shape.m * shape.k, random), bias = random_floats(shape.n, random);
      const MatmulCase test{shape, kind, a, weights.packed, shape.n % 2 ? &bias : nullptr};
      const std::vector<float> expected = test.run(Isa::kScalar);
      check_against_float64(test, weights.values, expected);
      for (const Isa isa : available_isas()) {
        CHECK(same_bits(test.run(isa), expected)) << text_of(shape, kind, isa);
      }
    }
  }
}

// Where a processor has both encodings of AVX-VNNI, no instruction set leads to the second.
void test_avxvnni_in_the_encoding_of_avx512() {
#if defined(__x86_64__)
  if (!isa_available(Isa::kAvx512Vnni)) return;
  std::mt19937 random(5);
  for (const MatmulShape& shape : kShapes) {
    for (const MatmulKind& kind : kKinds) {
      if (!kind.mx()) continue;
      const Weights weights = random_weights(shape, kind.format, random);
      const std::vector<float> a = random_floats(shape.m * shape.k, random);
      const MatmulCase test{shape, kind, a, weights.packed};
      CHECK(same_bits(test.run(avxvnni_kernels_of_avx512()), test.run(Isa::kScalar)))
          << text_of(shape, kind, Isa::kAvxVnni) << "in the encoding of AVX-512";
    }
  }
#endif
}

// Large enough to be cut into tasks, of which the last is ragged.
void test_threads() {
  std::mt19937 random(2);
  for (const MatmulShape& shape : {MatmulShape{1, 3000, 1056}, {8, 1500, 1056}, {45, 777, 1056}, {300, 100, 320}}) {
    for (const MatmulKind& kind : kKinds) {
      const Weights weights = random_weights(shape, kind.format, random);
      const std::vector<float> a = random_floats(shape.m * shape.k, random);
      const MatmulCase test{shape, kind, a, weights.packed};
      for (const Isa isa : available_isas()) {
        const std::vector<float> expected = test.run(isa);
        for (const size_t threads : {2, 3, 5}) {
          CHECK(same_bits(test.run(isa, threads), expected)) << text_of(shape, kind, isa) << threads << "threads";
        }
      }
    }
  }
}

void test_rows_do_not_depend_on_company() {
  std::mt19937 random(3);
  const MatmulShape shape{40, 70, 160};
  for (const MatmulKind& kind : kKinds) {
    const Weights weights = random_weights(shape, kind.format, random);
    const std::vector<float> a = random_floats(shape.m * shape.k, random);
    for (const Isa isa : available_isas()) {
      const std::vector<float> all = MatmulCase{shape, kind, a, weights.packed}.run(isa);
      for (size_t m = 1; m < shape.m; ++m) {
        const std::vector<float> last_rows(a.end() - static_cast<ptrdiff_t>(m * shape.k), a.end());
        const std::vector<float> expected(all.end() - static_cast<ptrdiff_t>(m * shape.n), all.end());
        const MatmulCase test{{m, shape.n, shape.k}, kind, last_rows, weights.packed};
        CHECK(same_bits(test.run(isa), expected)) << text_of(test.shape, kind, isa);
      }
    }
  }
}

// Packed weights may lie at any address.
void test_unaligned_weights() {
  std::mt19937 random(4);
  const MatmulShape shape{5, 80, 96};
  for (const MatmulKind& kind : kKinds) {
    const Weights weights = random_weights(shape, kind.format, random);
    const std::vector<float> a = random_floats(shape.m * shape.k, random);
    std::vector<uint8_t> moved(weights.packed.size() + 1);
    std::copy(weights.packed.begin(), weights.packed.end(), moved.begin() + 1);
    for (const Isa isa : available_isas()) {
      std::vector<float> out(shape.m * shape.n);
      std::vector<uint8_t> scratch(matmul_scratch_bytes(shape, kind) + 1);
      const size_t threads = 1;
      matmul(shape, kind, {a.data(), moved.data() + 1, nullptr, out.data()}, isa, scratch.data() + 1,
             threads_of(threads));
      CHECK(same_bits(out, MatmulCase{shape, kind, a, weights.packed}.run(isa))) << text_of(shape, kind, isa);
    }
  }
}

}  // namespace
}  // namespace mxspec::test

int main() {
  using namespace mxspec::test;
  test_every_isa();
  test_avxvnni_in_the_encoding_of_avx512();
  test_threads();
  test_rows_do_not_depend_on_company();
  test_unaligned_weights();
  return check_result();
}
