// Random packed matrices and a float64 product of them, for the tests of the matmul.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "runtime/ops/kernels/matmul.h"

namespace mxspec::test {

inline const char* format_name(WeightFormat format) {
  return format == WeightFormat::kFp16 ? "fp16" : format == WeightFormat::kMxfp6E3m2 ? "mxfp6_e3m2" : "mxfp6_e2m3";
}

inline constexpr WeightFormat kFormats[] = {WeightFormat::kFp16, WeightFormat::kMxfp6E3m2, WeightFormat::kMxfp6E2m3};

// The value of a 6-bit code, from its definition: sign, exponent, mantissa.
inline double code_value(WeightFormat format, unsigned code) {
  const int mantissa_bits = format == WeightFormat::kMxfp6E3m2 ? 2 : 3;
  const int bias = format == WeightFormat::kMxfp6E3m2 ? 3 : 1;
  const int exponent = (code & 31) >> mantissa_bits;
  const double fraction = (code & ((1 << mantissa_bits) - 1)) / static_cast<double>(1 << mantissa_bits);
  const double value = exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  return code & 32 ? -value : value;
}

// The value of a half, from its definition.
inline double half_value(uint16_t half) {
  const int exponent = half >> 10 & 31;
  const double fraction = (half & 1023) / 1024.0;
  const double value = exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
  return half & 0x8000 ? -value : value;
}

// A packed matrix with random codes, and the float64 values it stands for.
struct Weights {
  std::vector<uint8_t> packed;
  std::vector<double> values;  // [n, k]
};

struct ScaleRange {
  unsigned least, most;
};

inline void put_code(uint8_t* tile, unsigned row, unsigned k, unsigned code) {
  const unsigned vector = k / 2, lane = 2 * row + k % 2, i = vector % 8;
  uint8_t* half = tile + vector / 8 * 192;
  const auto add = [&](unsigned word, unsigned bits) {
    uint16_t value;
    std::memcpy(&value, half + word * 64 + lane * 2, 2);
    value = static_cast<uint16_t>(value | bits);
    std::memcpy(half + word * 64 + lane * 2, &value, 2);
  };
  switch (i) {
    case 6:
      add(0, (code & 15) << 12);
      add(2, (code >> 4) << 12);
      break;
    case 7:
      add(1, (code & 15) << 12);
      add(2, (code >> 4) << 14);
      break;
    default:
      add(i / 2, code << (i % 2 * 6));
  }
}

inline Weights random_weights(const MatmulShape& shape, WeightFormat format, std::mt19937& random,
                              ScaleRange scales = {118, 124}) {
  const size_t tile_bytes = shape.row_tile_bytes(format);
  Weights weights{std::vector<uint8_t>(shape.row_tiles() * tile_bytes), std::vector<double>(shape.n * shape.k)};
  for (size_t n = 0; n < shape.n; ++n) {
    uint8_t* row_tile = weights.packed.data() + n / 16 * tile_bytes;
    unsigned scale = 0;
    for (size_t k = 0; k < shape.k; ++k) {
      double& value = weights.values[n * shape.k + k];
      if (format == WeightFormat::kFp16) {
        const auto half = static_cast<uint16_t>((random() & 0x83FF) | (random() % 14 << 10));
        std::memcpy(row_tile + (k * 16 + n % 16) * 2, &half, 2);
        value = half_value(half);
        continue;
      }
      if (k % 32 == 0) {
        scale = scales.least + random() % (scales.most - scales.least + 1);
        row_tile[shape.k_blocks() * 384 + k / 32 * 16 + n % 16] = static_cast<uint8_t>(scale);
      }
      const unsigned code = random() & 63;
      put_code(row_tile + k / 32 * 384, n % 16, k % 32, code);
      value = std::ldexp(code_value(format, code), static_cast<int>(scale) - 127);
    }
  }
  return weights;
}

inline std::vector<float> random_floats(size_t count, std::mt19937& random, float sigma = 1.0f) {
  std::normal_distribution<float> normal(0.0f, sigma);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// Runs the tasks in order, or on `threads` threads, each taking every threads-th.
inline ParallelFor threads_of(const size_t& threads) {
  const auto run = [](void* context, size_t count, void (*body)(void*, size_t), void* user) {
    const size_t threads = *static_cast<size_t*>(context);
    std::vector<std::thread> all;
    for (size_t t = 1; t < threads; ++t) {
      all.emplace_back([=] {
        for (size_t i = t; i < count; i += threads) body(user, i);
      });
    }
    for (size_t i = 0; i < count; i += threads) body(user, i);
    for (std::thread& thread : all) thread.join();
  };
  return {run, const_cast<size_t*>(&threads), threads};
}

struct MatmulCase {
  MatmulShape shape;
  WeightFormat format;
  const std::vector<float>& a;
  const std::vector<uint8_t>& packed;
  const std::vector<float>* bias = nullptr;

  std::vector<float> run(Isa isa, size_t threads = 1) const {
    std::vector<float> out(shape.m * shape.n, -12345.0f);
    std::vector<uint8_t> scratch(matmul_scratch_bytes(shape, format));
    matmul(shape, format, {a.data(), packed.data(), bias ? bias->data() : nullptr, out.data()}, isa, scratch.data(),
           threads_of(threads));
    return out;
  }
};

inline std::vector<Isa> available_isas() {
  std::vector<Isa> available;
  for (const Isa isa : kAllIsas) {
    if (isa_available(isa)) available.push_back(isa);
  }
  return available;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline std::string text_of(const MatmulShape& shape, WeightFormat format, Isa isa) {
  return std::string(isa_name(isa)) + " " + format_name(format) + " m=" + std::to_string(shape.m) +
         " n=" + std::to_string(shape.n) + " k=" + std::to_string(shape.k);
}

}  // namespace mxspec::test
