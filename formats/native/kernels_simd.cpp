// The kernels in vectors of kLanes 32-bit lanes, compiled once for each width (CMakeLists.txt). The vector types of GCC
// and Clang become its registers; everything has internal linkage, so that no function compiled for a wide machine is
// ever linked into a narrow one's path. kernels_scalar.cpp says what is computed.
#if defined(__AVX512BW__)
#define MXSPEC_LANES 16
#elif defined(__AVX2__)
#define MXSPEC_LANES 8
#elif defined(__aarch64__)
#define MXSPEC_LANES 4
#endif

#if MXSPEC_LANES == 4
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif

#include <utility>

#include "formats/native/isa.h"
#include "formats/native/kernels.h"

namespace mxspec::formats {
namespace {

constexpr int kLanes = MXSPEC_LANES;
constexpr int kParts = kBlock / kLanes;  // vectors that hold one row of a tile

using Floats = float __attribute__((vector_size(4 * kLanes)));
using Ints = int32_t __attribute__((vector_size(4 * kLanes)));
using Words = uint32_t __attribute__((vector_size(4 * kLanes)));
using Halves = uint16_t __attribute__((vector_size(2 * kLanes)));

template <typename Vector>
inline Vector load_vector(const void* from) {
  Vector vector;
  __builtin_memcpy(&vector, from, sizeof vector);
  return vector;
}

template <typename Vector>
inline void store_vector(void* to, Vector vector) {
  __builtin_memcpy(to, &vector, sizeof vector);
}

inline Words bits(Floats values) { return __builtin_bit_cast(Words, values); }
inline Floats floats(Words words) { return __builtin_bit_cast(Floats, words); }

#if MXSPEC_LANES == 16

inline Words pick(Words a, Words b, Words lanes) {  // lanes 0..15 are a's, 16..31 are b's
  return __builtin_bit_cast(
      Words, _mm512_permutex2var_epi32(__builtin_bit_cast(__m512i, a), __builtin_bit_cast(__m512i, lanes),
                                       __builtin_bit_cast(__m512i, b)));
}
inline Words zip_low(Words a, Words b) {
  return pick(a, b, Words{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
}
inline Words zip_high(Words a, Words b) {
  return pick(a, b, Words{8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
}
inline Words even_lanes(Words a, Words b) {
  return pick(a, b, Words{0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30});
}

#elif MXSPEC_LANES == 8

inline __m256i raw(Words words) { return __builtin_bit_cast(__m256i, words); }
inline Words zip_low(Words a, Words b) {
  const __m256i low = _mm256_unpacklo_epi32(raw(a), raw(b)), high = _mm256_unpackhi_epi32(raw(a), raw(b));
  return __builtin_bit_cast(Words, _mm256_permute2x128_si256(low, high, 0x20));
}
inline Words zip_high(Words a, Words b) {
  const __m256i low = _mm256_unpacklo_epi32(raw(a), raw(b)), high = _mm256_unpackhi_epi32(raw(a), raw(b));
  return __builtin_bit_cast(Words, _mm256_permute2x128_si256(low, high, 0x31));
}
inline Words even_lanes(Words a, Words b) {
  const __m256 mixed = _mm256_shuffle_ps(__builtin_bit_cast(__m256, a), __builtin_bit_cast(__m256, b), 0x88);
  return __builtin_bit_cast(Words, _mm256_permute4x64_epi64(__builtin_bit_cast(__m256i, mixed), 0xD8));
}

#else

inline Words zip_low(Words a, Words b) { return vzip1q_u32(a, b); }
inline Words zip_high(Words a, Words b) { return vzip2q_u32(a, b); }
inline Words even_lanes(Words a, Words b) { return vuzp1q_u32(a, b); }

#endif

// Lane pairs of a, then of b: the even one in the low 16 bits, the odd one in the high.
inline Words join_pairs(Words a, Words b) {
  using Longs = uint64_t __attribute__((vector_size(4 * kLanes)));
  const auto joined = [](Words words) {
    const Longs longs = __builtin_bit_cast(Longs, words);
    return __builtin_bit_cast(Words, longs | longs >> 16);
  };
  return even_lanes(joined(a), joined(b));
}

// Transposes kLanes x kLanes words. Each pass deals the first half of the vectors between those of the second, which
// rotates the bits of (vector, lane) by one; after log2(kLanes) passes the two have changed places.
inline void transpose(Words (&square)[kLanes]) {
  for (int pass = 1; pass < kLanes; pass *= 2) {
    Words dealt[kLanes];
    for (int i = 0; i < kLanes / 2; ++i) {
      dealt[2 * i] = zip_low(square[i], square[i + kLanes / 2]);
      dealt[2 * i + 1] = zip_high(square[i], square[i + kLanes / 2]);
    }
    for (int i = 0; i < kLanes; ++i) square[i] = dealt[i];
  }
}

// Vectors v of a tile, a row a lane, from the pairs of all rows: columns[v][row group].
inline void columns_of(const Pairs& pairs, Words (&columns)[kVectors][kTileRows / kLanes]) {
  for (int group = 0; group < kTileRows / kLanes; ++group) {
    for (int part = 0; part < kVectors / kLanes; ++part) {
      Words square[kLanes];
      for (int lane = 0; lane < kLanes; ++lane)
        square[lane] = load_vector<Words>(&pairs.of[group * kLanes + lane][part * kLanes]);
      transpose(square);
      for (int lane = 0; lane < kLanes; ++lane) columns[part * kLanes + lane][group] = square[lane];
    }
  }
}

void pack(const Pairs& codes, int bits, uint8_t* tile) {
  Words pairs[kVectors][kTileRows / kLanes];
  columns_of(codes, pairs);
  for (int group = 0; group < kTileRows / kLanes; ++group) {
    Words quads[kQuads];
    for (int q = 0; q < kQuads; ++q) quads[q] = pairs[2 * q][group] | pairs[2 * q + 1][group] << 8;
    join_runs(bits, quads,
              [&](int run, Words words) { store_vector(tile + run * kRunBytes + group * sizeof(Words), words); });
  }
}

// The maskz forms of the intrinsics: the plain ones warn of an uninitialized variable in GCC 12's own header.
inline Floats widen_half(Halves halves) {
#if MXSPEC_LANES == 16
  return __builtin_bit_cast(Floats, _mm512_maskz_cvtph_ps(0xFFFF, __builtin_bit_cast(__m256i, halves)));
#elif MXSPEC_LANES == 8
  return __builtin_bit_cast(Floats, _mm256_cvtph_ps(__builtin_bit_cast(__m128i, halves)));
#else
  return __builtin_bit_cast(Floats, vcvt_f32_f16(__builtin_bit_cast(float16x4_t, halves)));
#endif
}

inline Halves narrow_half(Floats values) {
#if MXSPEC_LANES == 16
  return __builtin_bit_cast(
      Halves, _mm512_maskz_cvtps_ph(0xFFFF, __builtin_bit_cast(__m512, values), _MM_FROUND_TO_NEAREST_INT));
#elif MXSPEC_LANES == 8
  return __builtin_bit_cast(Halves, _mm256_cvtps_ph(__builtin_bit_cast(__m256, values), _MM_FROUND_TO_NEAREST_INT));
#else
  return __builtin_bit_cast(Halves, vcvt_f16_f32(values));
#endif
}

inline Words widen_integers(Halves halves) { return __builtin_convertvector(halves, Words); }

inline Floats widen(const void* entries, int32_t type, int64_t index) {
  if (type == MXSPEC_FLOAT32) return load_vector<Floats>(static_cast<const float*>(entries) + index);
  const Halves halves = load_vector<Halves>(static_cast<const uint16_t*>(entries) + index);
  return type == MXSPEC_FLOAT16 ? widen_half(halves) : floats(widen_integers(halves) << 16);
}

void load(const void* entries, int32_t type, bool transposed, int64_t stride, ValueTile& values) {
  if (!transposed) {
    for (int row = 0; row < kTileRows; ++row)
      for (int part = 0; part < kParts; ++part)
        store_vector(&values.of[row][part * kLanes], widen(entries, type, row * stride + part * kLanes));
    return;
  }
  for (int group = 0; group < kTileRows / kLanes; ++group) {
    for (int part = 0; part < kParts; ++part) {
      Words square[kLanes];
      for (int lane = 0; lane < kLanes; ++lane)
        square[lane] = bits(widen(entries, type, (part * kLanes + lane) * stride + group * kLanes));
      transpose(square);
      for (int lane = 0; lane < kLanes; ++lane)
        store_vector(&values.of[group * kLanes + lane][part * kLanes], square[lane]);
    }
  }
}

inline uint32_t largest_lane(Ints lanes) {
#if MXSPEC_LANES == 4
  return static_cast<uint32_t>(vmaxvq_s32(lanes));
#else
#if MXSPEC_LANES == 16
  __m256i half[2];
  store_vector(half, lanes);
  const __m256i most = _mm256_max_epi32(half[0], half[1]);
#else
  const __m256i most = __builtin_bit_cast(__m256i, lanes);
#endif
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xB1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(four));
#endif
}

// Codes of magnitudes in units of the scale, not yet saturated. Normals: the float's own exponent and leading mantissa
// bits, rounded in place (a carry moves up a binade by itself). Subnormals: a whole number of steps.
template <Element kElement, bool kAway>
inline Words magnitude_codes(Floats magnitude) {
  constexpr int kMantissa = kElement.mantissa_bits, kBias = kElement.bias;
  constexpr int kShift = 23 - kMantissa;
  constexpr uint32_t kLeastNormal = static_cast<uint32_t>(128 - kBias) << 23;
  const Words word = bits(magnitude);
  const Words up = kAway ? Words{} + (1u << (kShift - 1)) : (word >> kShift & 1u) + ((1u << (kShift - 1)) - 1);
  const Words normal = ((word + up) >> kShift) - (static_cast<uint32_t>(127 - kBias) << kMantissa);
  Words subnormal;
  if constexpr (kAway) {  // floor(2x) is exact, and (floor(2x) + 1) / 2 rounds x half up
    constexpr float kHalfSteps = 1 << (kMantissa + kBias);
    subnormal = __builtin_bit_cast(Words, __builtin_convertvector(magnitude * kHalfSteps, Ints) + 1) >> 1;
  } else {  // the addition rounds to even at the bit of one step
    constexpr float kAnchor = 1 << (23 - (kMantissa + kBias - 1));
    subnormal = bits(magnitude + kAnchor) - __builtin_bit_cast(uint32_t, kAnchor);
  }
  return word < kLeastNormal ? subnormal : normal;
}

template <Element kElement>
inline Floats magnitude_values(Words codes) {
  constexpr int kMantissa = kElement.mantissa_bits, kBias = kElement.bias;
  constexpr float kStep = 1.0f / (1 << (kMantissa + kBias - 1));
  const Floats normal = floats((codes + (static_cast<uint32_t>(127 - kBias) << kMantissa)) << (23 - kMantissa));
  const Floats subnormal = __builtin_convertvector(__builtin_bit_cast(Ints, codes), Floats) * kStep;
  return codes < 1u << kMantissa ? subnormal : normal;
}

int64_t count_nonfinite(const float (&block)[kBlock]) {
  int64_t count = 0;
  for (float value : block) count += (__builtin_bit_cast(uint32_t, value) & 0x7FFFFFFF) >= 0x7F800000;
  return count;
}

// The codes of magnitudes with the signs of their values; -0.0 has none.
template <Element kElement>
inline Words signed_codes(Words codes, Floats values) {
  const Words negative = __builtin_bit_cast(Words, values < 0);
  if constexpr (kElement.is_integer()) return ((codes ^ negative) - negative) & (kElement.codes() - 1u);
  return codes | (negative & static_cast<uint32_t>(kElement.sign()));
}

template <Element kElement, bool kAway>
void quantize_rows(const ValueTile& values, Pairs& codes, uint8_t* scales, TileSums& sums) {
  constexpr int kLargestCode = kElement.largest_code();
  Ints underflow{};
  for (int row = 0; row < kTileRows; ++row) {
    Floats block[kParts];
    Ints most{};
    for (int part = 0; part < kParts; ++part) {
      block[part] = load_vector<Floats>(&values.of[row][part * kLanes]);
      const Ints magnitude = __builtin_bit_cast(Ints, bits(block[part]) & 0x7FFFFFFFu);
      most = magnitude > most ? magnitude : most;
    }
    const uint32_t largest = largest_lane(most);
    if (largest >= 0x7F800000) [[unlikely]] {
      sums.nonfinite += count_nonfinite(values.of[row]);
      for (uint32_t& pair : codes.of[row]) pair = 0;
      scales[row] = kNaNScale;
      continue;
    }
    const int above = static_cast<int>(largest >> 23) - kElement.largest_exponent;
    const int byte = above > 0 ? above : 0;
    const float inverse = inverse_scale(byte);
    const double squared_scale = __builtin_bit_cast(double, static_cast<uint64_t>(1023 + 2 * (byte - 127)) << 52);
    scales[row] = static_cast<uint8_t>(byte);
    Words code[kParts];
    alignas(64) float error[16], norm[16];
    for (int part = 0; part < kParts; ++part) {
      const Floats magnitude = floats(bits(block[part]) & 0x7FFFFFFFu) * inverse;
      Words unsigned_code = magnitude_codes<kElement, kAway>(magnitude);
      unsigned_code = __builtin_bit_cast(Ints, unsigned_code) < kLargestCode ? unsigned_code : Words{} + kLargestCode;
      const Floats difference = magnitude - magnitude_values<kElement>(unsigned_code);
      const int lane = part * kLanes % 16;
      Floats squared_error = difference * difference, squared = magnitude * magnitude;
      if (part * kLanes >= 16) {
        squared_error = load_vector<Floats>(&error[lane]) + squared_error;
        squared = load_vector<Floats>(&norm[lane]) + squared;
      }
      store_vector(&error[lane], squared_error);
      store_vector(&norm[lane], squared);
      underflow -= (unsigned_code == 0) & (block[part] != 0);
      code[part] = signed_codes<kElement>(unsigned_code, block[part]);
    }
    for (int part = 0; part < kParts; part += 2)
      store_vector(&codes.of[row][part * kLanes / 2], join_pairs(code[part], code[part + 1]));
    for (int lane = 0; lane < 16; ++lane) {
      sums.error[lane] += static_cast<double>(error[lane]) * squared_scale;
      sums.norm[lane] += static_cast<double>(norm[lane]) * squared_scale;
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) sums.underflow += underflow[lane];
}

// quantize_rows() by the numbers of element and rounding.
struct RowQuantizers {
  void (*of[kElementCount][2])(const ValueTile& values, Pairs& codes, uint8_t* scales, TileSums& sums);
};
template <int... kNumber>
constexpr RowQuantizers row_quantizers(std::integer_sequence<int, kNumber...>) {
  static_assert(MXSPEC_EVEN == 0 && MXSPEC_AWAY == 1);
  return {{{quantize_rows<element_of(kNumber), false>, quantize_rows<element_of(kNumber), true>}...}};
}

void quantize(const ValueTile& values, int32_t element, int32_t rounding, Pairs& codes, uint8_t* scales,
              TileSums& sums) {
  static constexpr RowQuantizers kRows = row_quantizers(std::make_integer_sequence<int, kElementCount>{});
  kRows.of[element][rounding](values, codes, scales, sums);
}

void pack_half(const ValueTile& values, uint16_t* tile, TileSums& sums) {
  Pairs pairs;
  Ints nonfinite{}, overflow{}, underflow{};
  for (int row = 0; row < kTileRows; ++row) {
    Words half[kParts];
    alignas(64) float difference[kBlock], kept[kBlock];
    for (int part = 0; part < kParts; ++part) {
      const Floats value = load_vector<Floats>(&values.of[row][part * kLanes]);
      const Ints magnitude = __builtin_bit_cast(Ints, bits(value) & 0x7FFFFFFFu);
      const Halves narrow = narrow_half(value);
      half[part] = widen_integers(narrow);
      const Ints is_nonfinite = magnitude >= 0x7F800000, fits = magnitude <= 0x477FE000;  // 65504
      nonfinite -= is_nonfinite;
      overflow -= ~is_nonfinite & ~fits;
      underflow -= (magnitude != 0) & ((half[part] & 0x7FFFu) == 0);
      store_vector(&difference[part * kLanes], fits ? value - widen_half(narrow) : Floats{});
      store_vector(&kept[part * kLanes], fits ? value : Floats{});
    }
    for (int column = 0; column < kBlock; ++column) {
      const double error = difference[column], value = kept[column];
      sums.error[column % 16] += error * error;
      sums.norm[column % 16] += value * value;
    }
    for (int part = 0; part < kParts; part += 2)
      store_vector(&pairs.of[row][part * kLanes / 2], join_pairs(half[part], half[part + 1]));
  }
  Words columns[kVectors][kTileRows / kLanes];
  columns_of(pairs, columns);
  for (int vector = 0; vector < kVectors; ++vector) {
    for (int group = 0; group < kTileRows / kLanes; ++group) {
      const Words even_odd = columns[vector][group];
      uint16_t* even = tile + 2 * vector * kTileRows + group * kLanes;
      store_vector(even, __builtin_convertvector(even_odd, Halves));
      store_vector(even + kTileRows, __builtin_convertvector(even_odd >> 16, Halves));
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    sums.nonfinite += nonfinite[lane];
    sums.overflow += overflow[lane];
    sums.underflow += underflow[lane];
  }
}

}  // namespace

constinit const Kernels MXSPEC_OF_ISA(kKernels) = {kLanes == 16  ? "avx512"
                                                   : kLanes == 8 ? "avx2"
                                                                 : "neon",
                                                   load, quantize, pack, pack_half};

}  // namespace mxspec::formats
