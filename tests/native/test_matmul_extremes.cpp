// Activations and scales at the ends of their ranges: defined, right, and the same bits on every instruction set.
#include <bit>
#include <cmath>
#include <limits>

#include "runtime/ops/kernels/isa_kernels.h"
#include "tests/native/check.h"
#include "tests/native/matmul_case.h"

namespace mxspec::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Rows of magnitude 2^-149 to 2^127, some mixed, zeros of both signs.
std::vector<float> extreme_rows(const MatmulShape& shape, std::mt19937& random) {
  std::vector<float> a = random_floats(shape.m * shape.k, random);
  for (size_t row = 0; row < shape.m; ++row) {
    const int exponent = static_cast<int>(row * 276 / shape.m) - 149;
    for (size_t k = 0; k < shape.k; ++k) {
      float& value = a[row * shape.k + k];
      const bool other_block = row % 3 == 0 && k / kBlock % 2 == 1;
      value = std::ldexp(value > 0 ? 1.0f : -1.0f, other_block ? -exponent / 2 : exponent);
      if (random() % 5 == 0) value = std::copysign(0.0f, value);
    }
  }
  return a;
}

// In float64, whose range holds every product; one step of the subnormals allowed where the result is one.
void check_row(const MatmulCase& test, const std::vector<double>& weights, const std::vector<float>& out, size_t row) {
  const size_t n = test.shape.n, k = test.shape.k;
  for (size_t column = 0; column < n; ++column) {
    double expected = 0, bound = 0, magnitude = 0;
    for (size_t i = 0; i < k; ++i) {
      const double product = static_cast<double>(test.a[row * k + i]) * weights[column * k + i];
      expected += product;
      magnitude += std::fabs(product);
      if (i % kBlock == 0) {
        double largest = 0, sum = 0;
        for (size_t j = i; j < std::min(k, i + kBlock); ++j) {
          largest = std::max(largest, std::fabs(static_cast<double>(test.a[row * k + j])));
          sum += std::fabs(weights[column * k + j]);
        }
        bound += largest * sum;
      }
    }
    // Where sums leave float32 on the way, the result is infinite or NaN.
    if (magnitude > 0x1p126) continue;
    const double error = std::fabs(out[row * n + column] - expected);
    CHECK(error <=
          bound * (is_int8(test.kind) ? 0x1p-7 : 0x1p-14) + 0x1p-149 * static_cast<double>(test.shape.k_blocks()))
        << text_of(test.shape, test.kind, Isa::kScalar) << "row" << row << "column" << column << "got"
        << out[row * n + column] << "expected" << expected;
  }
}

void test_extreme_rows() {
  std::mt19937 random(1);
  const MatmulShape shape{92, 33, 160};
  for (const MatmulKind& kind : kKinds) {
    if (!kind.mx()) continue;
    for (const ScaleRange scales : {ScaleRange{0, 254}, {0, 5}, {120, 124}, {245, 254}}) {
      const Weights weights = random_weights(shape, kind.format, random, scales);
      const std::vector<float> a = extreme_rows(shape, random);
      const MatmulCase test{shape, kind, a, weights.packed};
      const std::vector<float> expected = test.run(Isa::kScalar);
      for (size_t row = 0; row < shape.m; ++row) check_row(test, weights.values, expected, row);
      for (const Isa isa : available_isas()) {
        CHECK(same_bits(test.run(isa), expected)) << text_of(shape, kind, isa) << "scales from" << scales.least;
      }
    }
  }
}

void test_not_finite_rows() {
  std::mt19937 random(2);
  const MatmulShape shape{20, 33, 70};
  for (const MatmulKind& kind : kKinds) {
    const Weights weights = random_weights(shape, kind.format, random);
    std::vector<float> a = random_floats(shape.m * shape.k, random);
    const std::vector<float> clean = MatmulCase{shape, kind, a, weights.packed}.run(Isa::kScalar);
    a[2 * shape.k + 69] = kInfinity;
    a[5 * shape.k] = -kInfinity;
    a[19 * shape.k + 40] = std::bit_cast<float>(0xFFFFFFFFu);  // a NaN
    for (const Isa isa : available_isas()) {
      const std::vector<float> out = MatmulCase{shape, kind, a, weights.packed}.run(isa);
      for (size_t i = 0; i < out.size(); ++i) {
        const size_t row = i / shape.n;
        const bool is_nan = row == 2 || row == 5 || row == 19;
        const uint32_t expected = is_nan ? 0x7FC00000u : std::bit_cast<uint32_t>(clean[i]);
        CHECK(std::bit_cast<uint32_t>(out[i]) == expected) << text_of(shape, kind, isa) << "row" << row;
      }
    }
  }
}

// A quantised row, its values in the order of k.
struct Quantised {
  RowKind kind;
  std::vector<int> q;
  std::vector<float> scales;
  std::vector<int32_t> starts;
};

template <class Value>
Quantised quantise(QuantiseRow function, const std::vector<float>& row, const QuantisationRule& rule, size_t rows,
                   bool swaps_middle) {
  const size_t blocks = (row.size() + 31) / 32 * rows;
  std::vector<Value> q(blocks * 32, 7);
  Quantised out{RowKind::kOrdinary, {}, std::vector<float>(blocks, 7), std::vector<int32_t>(blocks, 7)};
  out.kind = function(row.data(), row.size(), rule, {q.data(), out.scales.data(), out.starts.data(), rows});
  for (size_t i = 0; swaps_middle && i < q.size(); i += 4) std::swap(q[i + 1], q[i + 2]);
  out.q.assign(q.begin(), q.end());
  return out;
}

// Bit patterns of any kind, and magnitudes that round up to the next power of two.
std::vector<float> awkward_row(int trial, std::mt19937& random) {
  std::vector<float> row(1 + random() % 100);
  const uint32_t exponent = trial % 2 ? 100 + random() % 60 : random() % 260;
  for (float& value : row) {
    const uint32_t mantissa = trial % 3 ? random() & 0x7FFFFF : 0x7FFE00 + random() % 0x200;
    const uint32_t sign = random() & 0x80000000u;
    value = std::bit_cast<float>(sign | (exponent % 256) << 23 | mantissa);
  }
  return row;
}

void check_quantised(const Quantised& quantised, const std::vector<float>& row, const QuantisationRule& rule,
                     size_t rows) {
  for (const int value : quantised.q) CHECK(std::abs(value) <= (rule.int8 ? 127 : 32767)) << value;
  for (size_t i = 0; i < row.size() && quantised.kind == RowKind::kOrdinary; ++i) {
    const double quantum = 16.0 * quantised.scales[i / 32 * rows];  // scales hold the unit 1/16 of the weights, too
    const double got = quantised.q[i / 32 * rows * 32 + i % 32] * quantum;
    CHECK(std::fabs(got - row[i]) <= quantum * (rule.int8 ? 0.50001 : 0.5)) << got << row[i];
  }
}

void test_quantisers_agree() {
  std::mt19937 random(3);
  int ordinary = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    const std::vector<float> row = awkward_row(trial, random);
    const size_t rows = 1 + random() % 3;
    for (const bool int8 : {false, true}) {
      const QuantisationRule rule{int8, 4, 64, Starts::kSum};
      const Quantised expected = quantise<int16_t>(kQuantiseScalar.words, row, rule, rows, false);
      ordinary += expected.kind == RowKind::kOrdinary;
      check_quantised(expected, row, rule, rows);
      for (const Isa isa : available_isas()) {
        const RowQuantisers& quantisers = matmul_kernels(isa).quantise;
        const bool swaps_middle = isa == Isa::kAvx2 || isa == Isa::kAvxVnni;
        const Quantised words = quantise<int16_t>(quantisers.words, row, rule, rows, swaps_middle);
        CHECK(words.kind == expected.kind && words.q == expected.q && same_bits(words.scales, expected.scales))
            << isa_name(isa) << "words, trial" << trial;
        if (!int8 || quantisers.bytes == nullptr) continue;
        const Quantised bytes = quantise<int8_t>(quantisers.bytes, row, rule, rows, true);
        CHECK(bytes.kind == expected.kind && bytes.q == expected.q && same_bits(bytes.scales, expected.scales))
            << isa_name(isa) << "bytes, trial" << trial;
        for (size_t block = 0; block < bytes.starts.size(); block += rows) {
          int sum = 0;
          for (size_t i = 0; i < 32; ++i) sum += bytes.q[block * 32 + i];
          CHECK(bytes.starts[block] == -64 * sum) << isa_name(isa) << "trial" << trial;
        }
      }
    }
  }
  CHECK(ordinary > 2000) << ordinary;
}

// The starts of AVX2: a pair of int16 for each quarter of a block, or one for the whole, modulo 2^16.
void test_pairs() {
  if (!isa_available(Isa::kAvx2)) return;
  std::mt19937 random(4);
  const std::vector<float> row = random_floats(100, random);
  for (const Starts starts : {Starts::kPair, Starts::kFourPairs}) {
    constexpr size_t kRows = 2, kBlocks = 4;
    const size_t pairs = starts_of_block(starts);
    int8_t q[kBlocks * kRows * 32] = {};
    float scales[kBlocks * kRows];
    std::vector<int32_t> got(kBlocks * kRows * pairs, 7);
    matmul_kernels(Isa::kAvx2)
        .quantise.bytes(row.data(), row.size(), {true, 4, 64, starts}, {q, scales, got.data(), kRows});
    for (size_t i = 0; i < kBlocks * pairs; ++i) {
      const size_t block = i / pairs * kRows, values = 32 / pairs;
      uint16_t expected[2] = {};
      for (size_t k = 0; k < values; ++k) {
        uint16_t& sum = expected[k % 4 / 2];
        sum = static_cast<uint16_t>(sum - 64 * q[block * 32 + i % pairs * values + k]);
      }
      const auto pair = static_cast<int32_t>(expected[0] | static_cast<uint32_t>(expected[1]) << 16);
      CHECK(got[block * pairs + i % pairs] == pair) << "start" << i << "of" << pairs << "a block";
      CHECK(got[(block + 1) * pairs + i % pairs] == 7) << "the other row's";
    }
  }
}

void test_choice_of_isa() {
  CHECK(choose_isa("").error.empty());
  CHECK(choose_isa("").isa == available_isas().back());
  for (const Isa isa : kAllIsas) {
    const IsaChoice choice = choose_isa(isa_name(isa));
    CHECK(choice.error.empty() == isa_available(isa)) << isa_name(isa) << choice.error;
    CHECK(choice.isa == isa) << isa_name(isa);
  }
  CHECK(choose_isa("sse9").error ==
        "MXSPEC_ISA: got sse9, "
        "expected one of scalar, avx2, avxvnni, avx512, avx512vnni, avx512vbmi, amx, neon, neondot");
}

}  // namespace
}  // namespace mxspec::test

int main() {
  using namespace mxspec::test;
  test_extreme_rows();
  test_not_finite_rows();
  test_quantisers_agree();
  test_pairs();
  test_choice_of_isa();
  return check_result();
}
