// Random packed matrices and a float64 product of them, for the tests of the matmul.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "runtime/ops/kernels/matmul/matmul_call.h"

namespace mxspec::test {

// Every product there is.
inline const std::vector<MatmulKind> kKinds = [] {
  std::vector<MatmulKind> kinds;
  for (const Activations activations : {Activations::kInt16, Activations::kInt8}) {
    for (const formats::WeightFormatFacts& facts : formats::kWeightFormats) {
      const MatmulKind kind{facts.format, activations};
      if (kind.possible()) kinds.push_back(kind);
    }
  }
  return kinds;
}();

inline bool is_int8(const MatmulKind& kind) { return kind.activations == Activations::kInt8; }

// The value of a code, from the definition that the format's name stands for: an integer in units of 1/64, or sign,
// exponent and mantissa of eXmY.
inline double code_value(WeightFormat format, unsigned code) {
  const std::string name = MatmulKind{format}.facts().name;
  if (name == "mxint8") return static_cast<int8_t>(code) / 64.0;
  const int exponent_bits = name.end()[-3] - '0', mantissa_bits = name.end()[-1] - '0';
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const unsigned sign = 1u << (exponent_bits + mantissa_bits);
  const int exponent = static_cast<int>(code & (sign - 1)) >> mantissa_bits;
  const double fraction = (code & ((1u << mantissa_bits) - 1)) / static_cast<double>(1 << mantissa_bits);
  const double value = exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  return code & sign ? -value : value;
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

// docs/formats.md has the picture.
inline void put_code(uint8_t* tile, int bits, unsigned row, unsigned k, unsigned code) {
  constexpr unsigned kByteOfColumn[] = {0, 2, 1, 3};
  const unsigned quad = k / 4, byte = row * 4 + kByteOfColumn[k % 4];
  const auto add = [&](unsigned run, unsigned value) {
    tile[run * 64 + byte] = static_cast<uint8_t>(tile[run * 64 + byte] | value);
  };
  if (bits == 8) {
    add(quad, code);
  } else if (bits == 4) {
    add(quad / 2, code << quad % 2 * 4);
  } else if (quad % 4 < 3) {
    add(quad / 4 * 3 + quad % 4, code);
  } else {
    for (unsigned run = 0; run < 3; ++run) add(quad / 4 * 3 + run, (code >> 2 * run & 3) << 6);
  }
}

inline Weights random_weights(const MatmulShape& shape, WeightFormat format, std::mt19937& random,
                              ScaleRange scales = {118, 124}) {
  const size_t tile_bytes = shape.row_tile_bytes(format);
  const formats::WeightFormatFacts& facts = MatmulKind{format}.facts();
  const auto code_bytes = static_cast<size_t>(facts.tile_code_bytes());
  Weights weights{std::vector<uint8_t>(shape.row_tiles() * tile_bytes), std::vector<double>(shape.n * shape.k)};
  for (size_t n = 0; n < shape.n; ++n) {
    uint8_t* row_tile = weights.packed.data() + n / 16 * tile_bytes;
    unsigned scale = 0;
    for (size_t k = 0; k < shape.k; ++k) {
      double& value = weights.values[n * shape.k + k];
      if (format == WeightFormat::kFp16Tiles) {
        const auto half = static_cast<uint16_t>((random() & 0x83FF) | (random() % 14 << 10));
        std::memcpy(row_tile + (k * 16 + n % 16) * 2, &half, 2);
        value = half_value(half);
        continue;
      }
      if (k % 32 == 0) {
        scale = scales.least + random() % (scales.most - scales.least + 1);
        row_tile[shape.k_blocks() * code_bytes + k / 32 * 16 + n % 16] = static_cast<uint8_t>(scale);
      }
      const int bits = facts.element.bits;
      const unsigned code = random() & ((1u << bits) - 1);
      put_code(row_tile + k / 32 * code_bytes, bits, static_cast<unsigned>(n % 16), static_cast<unsigned>(k % 32),
               code);
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
  MatmulKind kind;
  const std::vector<float>& a;
  const std::vector<uint8_t>& packed;
  const std::vector<float>* bias = nullptr;

  std::vector<float> run(Isa isa, size_t threads = 1) const { return run(matmul_kernels(isa), threads); }
  std::vector<float> run(const MatmulKernels& kernels, size_t threads = 1) const {
    std::vector<float> out(shape.m * shape.n, -12345.0f);
    std::vector<uint8_t> scratch(matmul_scratch_bytes(shape, kind));
    multiply(shape, kind, {a.data(), packed.data(), bias ? bias->data() : nullptr, out.data()}, kernels, scratch.data(),
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
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline std::string text_of(const MatmulShape& shape, const MatmulKind& kind, Isa isa) {
  return std::string(isa_name(isa)) + " " + kind.facts().name + (is_int8(kind) ? " int8" : "") +
         " m=" + std::to_string(shape.m) + " n=" + std::to_string(shape.n) + " k=" + std::to_string(shape.k);
}

}  // namespace mxspec::test
