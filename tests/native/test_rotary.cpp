// Rotary embedding: against the formula, in place, and with a part of the head left alone.
#include <cmath>
#include <random>
#include <vector>

#include "runtime/ops/kernels/rotary.h"
#include "tests/native/check.h"

namespace {

std::vector<float> random_floats(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

void check(size_t heads, size_t head_size, size_t rotary, bool pairs) {
  const std::vector<float> x = random_floats(heads * head_size, 1);
  const std::vector<float> cos = random_floats(rotary / 2, 2), sin = random_floats(rotary / 2, 3);
  std::vector<float> out(x.size(), 99);
  mxspec::rotate_heads(x.data(), cos.data(), sin.data(), heads, head_size, rotary, pairs, out.data());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t d = i % head_size, half = rotary / 2;
    float expected = x[i];
    if (d < rotary) {
      const float neighbour = d % 2 == 0 ? -x[i + 1] : x[i - 1], across = d < half ? -x[i + half] : x[i - half];
      const float turned = pairs ? neighbour : across;
      const size_t pair = pairs ? d / 2 : d % half;
      expected = x[i] * cos[pair] + turned * sin[pair];
    }
    CHECK(out[i] == expected) << heads << head_size << rotary << "at" << i;
  }
  std::vector<float> in_place = x;
  mxspec::rotate_heads(in_place.data(), cos.data(), sin.data(), heads, head_size, rotary, pairs, in_place.data());
  CHECK(in_place == out) << heads << head_size << rotary << "in place";
}

}  // namespace

int main() {
  for (const size_t head_size : {2, 4, 20, 64, 80}) {
    for (size_t rotary = 0; rotary <= head_size; rotary += 2) {
      for (const bool pairs : {false, true}) check(3, head_size, rotary, pairs);
    }
  }
  check(0, 64, 64, false);
  return mxspec::test::check_result();
}
