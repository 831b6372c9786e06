// Quantising a row over the blocks of an instruction set. Included by one file an instruction set; internal linkage, so
// that no function compiled for a wide machine is linked into a narrow one's path.
//
// A Block holds 32 floats:
//   static Block load(const float* values);
//   uint32_t largest() const;                                     bits of the largest magnitude
//   void store(float inverse, int16_t* q) const;                  q = value * inverse, to nearest even
//   int32_t store(float inverse, int8_t* q) const;                the same, the middle of each four swapped; their sum
//   static constexpr bool kPairs;                                 has
//   static void store_pairs(const int8_t* q, const QuantisationRule& rule, int32_t* starts);
#pragma once

#include "runtime/ops/kernels/activations.h"
#include "runtime/ops/kernels/compiler.h"

namespace mxspec {
namespace {

constexpr uint32_t kNotFiniteBits = 0x7F800000u;
constexpr uint32_t kMagnitudeMask = 0x7FFFFFFFu;
constexpr int kQuantumBelowLargest = 14;  // of int16: 2^14 <= |q of the largest| < 2^15
constexpr float kMostInt8 = 127;

// The block exponents (biased) that are ordinary.
//   int16  e = exponent - 14 - unit_exponent >= 1, and the sum's 29 bits above it stay below 255
//   int8   the scale, largest / 127 in units of the weights, is normal, and its product with a sum < 2^20 is finite
struct ExponentRange {
  uint32_t least, most;

  static MXSPEC_INLINE ExponentRange of(const QuantisationRule& rule) {
    const uint32_t unit = static_cast<uint32_t>(rule.unit_exponent);
    if (rule.int8) return {9 + unit, 238};
    return {1 + kQuantumBelowLargest + unit, 225 + kQuantumBelowLargest + unit};
  }
};

struct BlockFactors {
  uint32_t exponent;
  float inverse, scale;  // 0 where the exponent is out of range

  static MXSPEC_INLINE BlockFactors of(uint32_t magnitude, const QuantisationRule& rule, const ExponentRange& range) {
    const uint32_t exponent = (rule.int8 ? magnitude : magnitude + 0x100u) >> 23;
    if (exponent < range.least || exponent > range.most) return {exponent, 0, 0};
    const uint32_t unit = static_cast<uint32_t>(rule.unit_exponent);
    if (rule.int8) {
      const float largest = __builtin_bit_cast(float, magnitude);
      return {exponent, kMostInt8 / largest, largest / kMostInt8 * __builtin_bit_cast(float, (127 - unit) << 23)};
    }
    return {exponent, __builtin_bit_cast(float, (254u + kQuantumBelowLargest - exponent) << 23),
            __builtin_bit_cast(float, (exponent - kQuantumBelowLargest - unit) << 23)};
  }
};

constexpr size_t kQuantisedAhead = 8;  // blocks fetched ahead: the values of a row lie far apart in its group

template <class Block, class Value>
RowKind quantise_row(const float* row, size_t k, const QuantisationRule& rule, RowSlot slot) {
  const ExponentRange range = ExponentRange::of(rule);
  uint32_t least = 255, most = 0;
  bool finite = true;
  Value* q = static_cast<Value*>(slot.q);
  const size_t blocks = (k + 31) / 32, starts = starts_of_block(rule.starts);
  alignas(64) float last_block[32] = {};
  for (size_t block = 0; block < blocks; ++block, row += 32) {
    const float* values = row;
    if (k - block * 32 < 32) {
      __builtin_memcpy(last_block, row, (k - block * 32) * sizeof(float));
      values = last_block;
    }
    __builtin_prefetch(row + kQuantisedAhead * 32);
    __builtin_prefetch(row + kQuantisedAhead * 32 + 16);
    __builtin_prefetch(q + (block + kQuantisedAhead) * slot.rows * 32, 1);
    const Block x = Block::load(values);
    const uint32_t magnitude = x.largest();
    const BlockFactors factors = BlockFactors::of(magnitude, rule, range);
    finite &= magnitude < kNotFiniteBits;
    if (magnitude != 0) {
      least = factors.exponent < least ? factors.exponent : least;
      most = factors.exponent > most ? factors.exponent : most;
    }
    slot.scales[block * slot.rows] = factors.scale;
    if constexpr (sizeof(Value) == 1) {
      int8_t* const of_block = q + block * slot.rows * 32;
      const int32_t sum = x.store(factors.inverse, of_block);
      if (rule.starts == Starts::kSum) {
        slot.starts[block * slot.rows] = factors.inverse == 0 ? 0 : -rule.offset * sum;  // a NaN's sum is anything
      } else if constexpr (Block::kPairs) {
        if (rule.starts != Starts::kNone) Block::store_pairs(of_block, rule, slot.starts + block * slot.rows * starts);
      }
    } else {
      x.store(factors.inverse, q + block * slot.rows * 32);
    }
  }
  if (finite && least >= range.least && most <= range.most) return RowKind::kOrdinary;
  for (size_t block = 0; block < blocks; ++block) {
    __builtin_memset(q + block * slot.rows * 32, 0, 32 * sizeof(Value));
    slot.scales[block * slot.rows] = 0;
    if constexpr (sizeof(Value) == 1) {
      __builtin_memset(slot.starts + block * slot.rows * starts, 0, starts * sizeof(int32_t));
    }
  }
  return finite ? RowKind::kExtreme : RowKind::kNotFinite;
}

}  // namespace
}  // namespace mxspec
