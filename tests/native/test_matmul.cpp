// The product with packed weights: right, and the same bits on every instruction set, for every m and thread count.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/native/check.h"
#include "tests/native/matmul_case.h"

namespace mxspec::test {
namespace {

// |error| of one output, in units of the sum of |w| * largest |x| of the block: half a step of 15-bit activations,
// which is 2^-15 of the block's largest magnitude, plus the float32 sums, 2^-24 for each of the two roundings of each
// block.
double mxfp6_bound(size_t k_blocks) { return 0x1p-15 + 2.0 * static_cast<double>(k_blocks + 1) * 0x1p-24; }
// fp16: one rounding for each k.
double fp16_bound(size_t k) { return static_cast<double>(k + 1) * 0x1p-24; }

void check_against_float64(const MatmulCase& test, const std::vector<double>& weights, const std::vector<float>& out) {
  const auto [m, n, k] = test.shape;
  const bool fp16 = test.format == WeightFormat::kFp16;
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
      const double bound = weight * (fp16 ? fp16_bound(k) : mxfp6_bound(test.shape.k_blocks()));
      const double error = std::fabs(out[row * n + column] - expected);
      CHECK(error <= bound) << text_of(test.shape, test.format, Isa::kScalar) << "row" << row << "column" << column
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

void test_every_isa_and_thread_count() {
  std::mt19937 random(1);
  for (const MatmulShape& shape : kShapes) {
    for (const WeightFormat format : kFormats) {
      const Weights weights = random_weights(shape, format, random);
      const std::vector<float> a = random_floats(shape.m * shape.k, random), bias = random_floats(shape.n, random);
      const MatmulCase test{shape, format, a, weights.packed, shape.n % 2 ? &bias : nullptr};
      const std::vector<float> expected = test.run(Isa::kScalar);
      check_against_float64(test, weights.values, expected);
      for (const Isa isa : kAllIsas) {
        if (!isa_available(isa)) continue;
        CHECK(same_bits(test.run(isa), expected)) << text_of(shape, format, isa);
        CHECK(same_bits(test.run(isa, 3), expected)) << text_of(shape, format, isa) << "on 3 threads";
      }
    }
  }
}

}  // namespace
}  // namespace mxspec::test

int main() {
  using namespace mxspec::test;
  test_every_isa_and_thread_count();
  return check_result();
}
