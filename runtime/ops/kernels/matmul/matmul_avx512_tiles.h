// The AVX-512 kernels, written once and compiled for three instruction sets, which differ in how products are added up
// (Dot) and how codes become bytes. Everything here has internal linkage, and nothing of the standard library is
// called, so that no function compiled for AVX-512 can be picked by the linker for the portable code.
#pragma once

#include <immintrin.h>

// GCC 12 takes the deliberately undefined registers of its own intrinsics for a mistake (its bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#include <utility>

#include "runtime/ops/kernels/compiler.h"
#include "runtime/ops/kernels/matmul/matmul_kernels.h"

namespace mxspec {
namespace {

MXSPEC_INLINE __m512i load(const void* bytes) { return _mm512_loadu_si512(bytes); }

// Four bytes of a row: two int16 or four int8.
MXSPEC_INLINE __m512i broadcast_four(const uint8_t* q) {
  int32_t four;
  __builtin_memcpy(&four, q, sizeof four);
  return _mm512_set1_epi32(four);
}

// Vector kQuad (0 to 3) of half a tile, its codes in the low bits of its bytes and anything above these
// (formats/native/layout.h has the picture).
template <int kBits, size_t kQuad>
MXSPEC_INLINE __m512i codes_of(const uint8_t* half) {
  if constexpr (kBits == 8) {
    return load(half + kQuad * 64);
  } else if constexpr (kBits == 4) {
    const __m512i run = load(half + kQuad / 2 * 64);
    return kQuad % 2 == 0 ? run : _mm512_srli_epi16(run, 4);
  } else if constexpr (kQuad < 3) {
    return load(half + kQuad * 64);
  } else {
    // Where a bit of the mask is set, that of the first, else that of the second.
    const auto select = [](__m512i mask, __m512i first, __m512i second)
                            MXSPEC_LAMBDA { return _mm512_ternarylogic_epi32(mask, first, second, 0xCA); };
    const __m512i low = _mm512_srli_epi16(load(half), 6), middle = _mm512_srli_epi16(load(half + 64), 4),
                  high = _mm512_srli_epi16(load(half + 128), 2);
    return select(_mm512_set1_epi8(0x0F), select(_mm512_set1_epi8(0x03), low, middle), high);
  }
}

// Weights as int16, two vectors of 16 rows x 2 columns for each vector of codes. vpermt2w looks at the low 6 bits of
// each lane only, so codes need no masking.
template <int kBits>
struct Words {
  static constexpr size_t kOfQuad = 2;  // vectors of weights of one of codes
  static constexpr size_t kGroupRows = 12;
  static constexpr bool kStarts = false;
  __m512i low, high;

  explicit Words(const WeightElement& element) : low(load(element.table)), high(load(element.table + 32)) {}

  // kSecond: columns 2 and 3 of the four, the odd bytes.
  template <size_t kSecond>
  MXSPEC_INLINE __m512i operator()(__m512i codes) const {
    if constexpr (kBits == 8) {
      return _mm512_srai_epi16(kSecond ? codes : _mm512_slli_epi16(codes, 8), 8);
    } else {
      return _mm512_permutex2var_epi16(low, kSecond ? _mm512_srli_epi16(codes, 8) : codes, high);
    }
  }
};

// Weights as unsigned bytes, value + offset. INT8:
struct BytesOfInt8 {
  static constexpr size_t kOfQuad = 1;
  static constexpr size_t kGroupRows = 12;
  static constexpr bool kStarts = true;

  explicit BytesOfInt8(const WeightElement&) {}
  template <size_t>
  MXSPEC_INLINE __m512i operator()(__m512i codes) const {
    return _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
  }
};

// Without VBMI: the even and the odd bytes, each looked up as words.
struct BytesOfWords {
  static constexpr size_t kOfQuad = 1;
  static constexpr size_t kGroupRows = 12;
  static constexpr bool kStarts = true;
  __m512i even[2], odd[2];

  explicit BytesOfWords(const WeightElement& element) {
    for (size_t i = 0; i < 2; ++i) {
      even[i] =
          _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(element.unsigned_bytes + i * 32)));
      odd[i] = _mm512_slli_epi16(even[i], 8);
    }
  }
  template <size_t>
  MXSPEC_INLINE __m512i operator()(__m512i codes) const {
    return _mm512_or_si512(_mm512_permutex2var_epi16(even[0], codes, even[1]),
                           _mm512_permutex2var_epi16(odd[0], _mm512_srli_epi16(codes, 8), odd[1]));
  }
};

#if defined(__AVX512VBMI__)
// vpermb looks at the low 6 bits of each byte only.
struct BytesOfVbmi {
  static constexpr size_t kOfQuad = 1;
  static constexpr size_t kGroupRows = 9;  // decoding is cheap; 4 % faster at 128 rows than 12
  static constexpr bool kStarts = true;
  __m512i table;

  explicit BytesOfVbmi(const WeightElement& element) : table(load(element.unsigned_bytes)) {}
  template <size_t>
  MXSPEC_INLINE __m512i operator()(__m512i codes) const {
    return _mm512_permutexvar_epi8(codes, table);
  }
};
#endif

// Hands the vectors of weights of half a tile of kTiles tiles, tile_bytes apart, to use(v, weights[kTiles]).
template <int kBits, size_t kTiles, class Decoder, class Use, size_t... kIndex>
MXSPEC_INLINE void for_decoded_half(const uint8_t* half, size_t tile_bytes, const Decoder& decoder, const Use& use,
                                    std::index_sequence<kIndex...>) {
  const auto decoded = [&](auto index) MXSPEC_LAMBDA {
    constexpr size_t kVector = index, kQuad = kVector / Decoder::kOfQuad;
    __m512i weights[kTiles];
    MXSPEC_UNROLL for (size_t t = 0; t < kTiles; ++t) {
      const __m512i codes = codes_of<kBits, kQuad>(half + t * tile_bytes);
      weights[t] = decoder.template operator()<kVector % Decoder::kOfQuad>(codes);
    }
    use(kVector, weights);
  };
  (decoded(std::integral_constant<size_t, kIndex>{}), ...);
}

// 2^(scale - 127); byte 0 is 2^-127, a subnormal.
MXSPEC_INLINE __m512 decode_scales(const uint8_t* scales) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales));
  const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23);
  return _mm512_castsi512_ps(_mm512_max_epu32(bits, _mm512_set1_epi32(0x00400000)));
}

MXSPEC_INLINE __m512 add_block(__m512 acc, __m512i sum, float scale, __m512 weight_scales) {
  return _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(scale)), weight_scales, acc);
}

// Values in memory stay there: GCC would carry acc from block to block in registers that the sums need.
MXSPEC_INLINE void keep_in_memory() { asm volatile("" ::: "memory"); }

// How far ahead of the computation weights are fetched. The hardware's own prefetching reaches two thirds of the
// bandwidth at m = 1 and half at m = 8: a block takes too many instructions for many of its misses to be under way at
// once. They go to the second-level cache, which waits for more lines at a time than the first: on Zen 4 one row of
// 5,632 x 2,048 then reads at 91 % of a plain read instead of 83 %, and eight rows take 0.86 of the time.
constexpr size_t kBytesAhead = 4608;
constexpr size_t kFp16BytesAhead = 3072;

MXSPEC_INLINE void fetch(const uint8_t* bytes) { _mm_prefetch(reinterpret_cast<const char*>(bytes), _MM_HINT_T1); }

template <int kBits, class Decoder, class Dot, size_t kTiles, size_t kRows>
void multiply_packed(const uint8_t* codes, const uint8_t* weight_scales, size_t tile_bytes, const uint8_t* next_codes,
                     size_t k_blocks, const WeightElement& element, QuantisedGroup group, float* acc) {
  constexpr size_t kTileCodeBytes = static_cast<size_t>(formats::code_bytes(kBits));
  constexpr size_t kBlocksAhead = kBytesAhead / kTileCodeBytes;
  constexpr size_t kVectors = 4 * Decoder::kOfQuad;  // of weights in half a tile
  constexpr size_t kRowBytes = kVectors * 2 * 4;     // of the integers of a row in a block
  // Two sums for each output where there are few, since an addition to a sum waits four cycles for the one before.
  constexpr size_t kOutputs = kTiles * kRows, kSums = kOutputs <= 8 ? 2 : 1;
  constexpr bool kInRegisters = kTiles == 1 || kOutputs <= 8;
  const Decoder decoder(element);
  const uint8_t* q = group.q;
  const float* scales = group.scales;
  const int32_t* starts = group.starts;
  __m512 totals[kInRegisters ? kOutputs : 1];
  MXSPEC_UNROLL for (size_t i = 0; i < kOutputs; ++i) {
    if constexpr (kInRegisters) {
      totals[i] = _mm512_setzero_ps();
    } else {
      _mm512_storeu_ps(acc + i * kTileRows, _mm512_setzero_ps());
    }
  }
  for (size_t block = 0; block < k_blocks; ++block) {
    const size_t ahead = block + kBlocksAhead;
    const uint8_t* fetched =
        ahead < k_blocks ? codes + kBlocksAhead * kTileCodeBytes : next_codes + (ahead - k_blocks) * kTileCodeBytes;
    MXSPEC_UNROLL for (size_t t = 0; t < kTiles; ++t) {
      MXSPEC_UNROLL for (size_t i = 0; i < kTileCodeBytes; i += 64) fetch(fetched + t * tile_bytes + i);
      fetch(weight_scales + (kTiles + t) * tile_bytes);
    }
    __m512i sums[kOutputs * kSums];
    MXSPEC_UNROLL for (size_t i = 0; i < kOutputs * kSums; ++i) {
      if (Decoder::kStarts && i % kSums == 0) {
        sums[i] = _mm512_set1_epi32(starts[i / kSums / kTiles]);
      } else {
        sums[i] = _mm512_setzero_si512();
      }
    }
    MXSPEC_UNROLL for (size_t half = 0; half < 2; ++half) {
      const uint8_t* half_q = q + half * kRowBytes / 2;
      for_decoded_half<kBits, kTiles>(
          codes + half * kTileCodeBytes / 2, tile_bytes, decoder,
          [&](size_t v, const __m512i* w) MXSPEC_LAMBDA {
            MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
              const __m512i x = broadcast_four(half_q + r * kRowBytes + v * 4);
              MXSPEC_UNROLL for (size_t t = 0; t < kTiles; ++t) {
                __m512i& sum = sums[(r * kTiles + t) * kSums + v % kSums];
                sum = Dot::add(sum, w[t], x);
              }
            }
          },
          std::make_index_sequence<kVectors>{});
    }
    MXSPEC_UNROLL for (size_t t = 0; t < kTiles; ++t) {
      const __m512 weight_scale = decode_scales(weight_scales + t * tile_bytes);
      MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
        const size_t i = r * kTiles + t;
        const __m512i sum = kSums == 1 ? sums[i] : _mm512_add_epi32(sums[i * kSums], sums[i * kSums + kSums - 1]);
        if constexpr (kInRegisters) {
          totals[i] = add_block(totals[i], sum, scales[r], weight_scale);
        } else {
          float* out = acc + i * kTileRows;
          _mm512_storeu_ps(out, add_block(_mm512_loadu_ps(out), sum, scales[r], weight_scale));
        }
      }
    }
    if (!kInRegisters) keep_in_memory();
    codes += kTileCodeBytes;
    weight_scales += kTileRows;
    q += kRows * kRowBytes;
    scales += kRows;
    starts += kRows;
  }
  if constexpr (kInRegisters) {
    MXSPEC_UNROLL for (size_t i = 0; i < kOutputs; ++i) _mm512_storeu_ps(acc + i * kTileRows, totals[i]);
  }
}

template <int kBits, class Decoder, class Dot, size_t kRows>
constexpr void set_rows(MxKernels& kernels) {
  // Row tiles taken together: as many as leave room for the sums in 32 registers. They share the broadcast activations.
  constexpr size_t kTiles = kRows <= 12 ? 2 : 1;
  kernels.tiles[kRows] = kTiles;
  kernels.multiply_packed[kRows] = multiply_packed<kBits, Decoder, Dot, kTiles, kRows>;
}

template <int kBits, class Decoder, class Dot, size_t... kIndex>
constexpr MxKernels mx_kernels(std::index_sequence<kIndex...>) {
  MxKernels kernels = {};
  kernels.most_rows = kMostRows;
  kernels.group_rows = Decoder::kGroupRows;
  kernels.starts = Decoder::kStarts ? Starts::kSum : Starts::kNone;
  (set_rows<kBits, Decoder, Dot, kIndex + 1>(kernels), ...);
  return kernels;
}

// The kernels of weights of kBits: Decoder is Words<kBits> or makes bytes.
template <int kBits, class Decoder, class Dot>
constexpr MxKernels mx_kernels() {
  return mx_kernels<kBits, Decoder, Dot>(std::make_index_sequence<kMostRows>{});
}

}  // namespace
}  // namespace mxspec
