// Weights of the AVX2 kernels: from a tile's codes to words and bytes. Everything here has internal linkage, as in
// matmul_avx512_tiles.h.
#pragma once

#include <immintrin.h>

#include <utility>

#include "runtime/ops/kernels/compiler.h"
#include "runtime/ops/kernels/matmul/matmul_kernels.h"

namespace mxspec {
namespace {

MXSPEC_INLINE __m256i load(const void* bytes) { return _mm256_loadu_si256(static_cast<const __m256i*>(bytes)); }

// Weights are asked for this early, into the second-level cache, which waits for more lines at a time than the first.
constexpr size_t kBytesAhead = 3072;
MXSPEC_INLINE void fetch_line(const uint8_t* bytes) { _mm_prefetch(reinterpret_cast<const char*>(bytes), _MM_HINT_T1); }

MXSPEC_INLINE __m256i table_of(const uint8_t* bytes) {
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
}

// 8 rows of vector kQuad (0 to 3) of half a tile, the codes in the low bits of the bytes and, of 6 bits, anything above
// these (formats/native/layout.h has the picture).
template <int kBits, size_t kQuad>
MXSPEC_INLINE __m256i codes_of(const uint8_t* half) {
  if constexpr (kBits == 8) {
    return load(half + kQuad * 64);
  } else if constexpr (kBits == 4) {
    const __m256i run = load(half + kQuad / 2 * 64);
    return _mm256_and_si256(kQuad % 2 == 0 ? run : _mm256_srli_epi16(run, 4), _mm256_set1_epi8(15));
  } else if constexpr (kQuad < 3) {
    return load(half + kQuad * 64);
  } else {
    const __m256i low = _mm256_srli_epi16(load(half), 6), middle = _mm256_srli_epi16(load(half + 64), 4),
                  high = _mm256_srli_epi16(load(half + 128), 2);
    return _mm256_or_si256(_mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(0x03)),
                                           _mm256_and_si256(middle, _mm256_set1_epi8(0x0C))),
                           _mm256_and_si256(high, _mm256_set1_epi8(0x30)));
  }
}

// A shift, in the multipliers: the shifters are the same pipes as the look-ups', which have enough to do.
MXSPEC_INLINE __m256i times_four(__m256i words) {
  __m256i four = _mm256_set1_epi16(4);
  asm("" : "+x"(four));  // or GCC makes the shift of it
  return _mm256_mullo_epi16(words, four);
}

// Codes of 6 bits as magnitudes below 16 units and, of the codes above, in larger units; and their signs. Byte look-ups
// of 16 entries give the magnitudes of the codes 0..15 and those of 16..31; an index with its top bit set gives 0, so
// that each of the two gives 0 for the codes of the other.
class SixBits {
 public:
  explicit SixBits(const WeightElement& element) : low_(table_of(element.low)), high_(table_of(element.high)) {}

  struct Magnitudes {
    __m256i small, large, sign;
  };
  MXSPEC_INLINE Magnitudes operator()(__m256i codes) const {
    const __m256i index = _mm256_and_si256(codes, _mm256_set1_epi8(31));
    return {_mm256_shuffle_epi8(low_, _mm256_add_epi8(index, _mm256_set1_epi8(0x70))),
            _mm256_shuffle_epi8(high_, _mm256_add_epi8(index, _mm256_set1_epi8(-0x10))),
            times_four(codes)};  // the sign in the top bit of each byte, which is 0 only where the magnitude is
  }

 private:
  __m256i low_, high_;
};

// The bytes of an output row are k, k + 2, k + 1, k + 3; quantise_avx2.h stores the activations in that order.
// Weights as int16, in two registers: rows 0 1 4 5 and 2 3 6 7 of the eight, four columns each.
struct FourWords {
  __m256i rows0145, rows2367;
};

template <int kBits>
class Words {
 public:
  static constexpr bool kWords = true;

  explicit Words(const WeightElement& element)
      : six_(element),
        table_(table_of(reinterpret_cast<const uint8_t*>(element.bytes))),
        units_(_mm256_set1_epi16(static_cast<int16_t>(1 | 256 << element.high_shift))) {}

  MXSPEC_INLINE FourWords operator()(__m256i codes) const {
    if constexpr (kBits == 6) {
      const SixBits::Magnitudes m = six_(codes);
      const __m256i small = _mm256_sign_epi8(m.small, m.sign), large = _mm256_sign_epi8(m.large, m.sign);
      return {_mm256_maddubs_epi16(units_, _mm256_unpacklo_epi8(small, large)),
              _mm256_maddubs_epi16(units_, _mm256_unpackhi_epi8(small, large))};
    } else {
      const __m256i bytes = kBits == 4 ? _mm256_shuffle_epi8(table_, codes) : codes;
      return {_mm256_srai_epi16(_mm256_unpacklo_epi8(bytes, bytes), 8),
              _mm256_srai_epi16(_mm256_unpackhi_epi8(bytes, bytes), 8)};
    }
  }

 private:
  SixBits six_;
  __m256i table_, units_;
};

// Weights as unsigned bytes: value + offset.
template <int kBits>
class Bytes {
 public:
  static constexpr bool kWords = false;

  explicit Bytes(const WeightElement& element) : table_(table_of(kBits == 6 ? element.high : element.unsigned_bytes)) {}

  MXSPEC_INLINE __m256i operator()(__m256i codes) const {
    if constexpr (kBits == 8) {
      return _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
    } else if constexpr (kBits == 4) {
      return _mm256_shuffle_epi8(table_, codes);
    } else {  // E2M3: the magnitude of a code below 16 is the code, that of a larger one is larger
      const __m256i index = _mm256_and_si256(codes, _mm256_set1_epi8(31));
      const __m256i large = _mm256_shuffle_epi8(table_, _mm256_add_epi8(index, _mm256_set1_epi8(-16)));
      const __m256i magnitude = _mm256_max_epu8(index, large), sign = _mm256_slli_epi16(codes, 2);
      return _mm256_add_epi8(_mm256_sign_epi8(magnitude, sign), _mm256_set1_epi8(64));
    }
  }

 private:
  __m256i table_;
};

// Hands the eight vectors of 8 rows of a tile to use(quad, codes).
template <int kBits, class Use, size_t... kQuad>
MXSPEC_INLINE void for_codes(const uint8_t* tile, const Use& use, std::index_sequence<kQuad...>) {
  constexpr size_t kHalfBytes = static_cast<size_t>(formats::code_bytes(kBits)) / 2;
  (use(kQuad, codes_of<kBits, kQuad % 4>(tile + kQuad / 4 * kHalfBytes)), ...);
}
constexpr std::make_index_sequence<8> kQuads;

// Eight of 2^(scale - 127); byte 0 is 2^-127, a subnormal.
MXSPEC_INLINE __m256 decode_scales(const uint8_t* scales) {
  const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales)));
  return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_slli_epi32(bytes, 23), _mm256_set1_epi32(0x00400000)));
}

// Decoded: words as vectors of 16 output rows by two k, k and k + 2, then k + 1 and k + 3; bytes as they are, vectors
// of 16 rows by four k.
template <int kBits, class Decoder>
void decode(const uint8_t* codes, const uint8_t* weight_scales, size_t blocks, const WeightElement& element,
            Decoded to) {
  constexpr size_t kTileCodeBytes = static_cast<size_t>(formats::code_bytes(kBits));
  const Decoder decoder(element);
  auto* bytes = static_cast<uint8_t*>(to.weights);
  for (size_t block = 0; block < blocks; ++block, codes += kTileCodeBytes) {
    for (size_t i = block * kTileRows; i < (block + 1) * kTileRows; i += 8) {
      _mm256_storeu_ps(to.scales + i, decode_scales(weight_scales + i));
    }
    for (size_t i = 0; i < kTileCodeBytes; i += 64) fetch_line(codes + kBytesAhead + i);
    for (size_t side = 0; side < 2; ++side) {
      for_codes<kBits>(
          codes + side * 32,
          [&](size_t quad, __m256i of_quad) MXSPEC_LAMBDA {
            const auto weights = decoder(of_quad);
            if constexpr (!Decoder::kWords) {
              _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes + quad * 64 + side * 32), weights);
            } else {
              const __m256 a = _mm256_castsi256_ps(weights.rows0145), b = _mm256_castsi256_ps(weights.rows2367);
              auto* const words = reinterpret_cast<float*>(bytes + quad * 128 + side * 32);
              _mm256_storeu_ps(words, _mm256_shuffle_ps(a, b, 0x88));
              _mm256_storeu_ps(words + 16, _mm256_shuffle_ps(a, b, 0xDD));
            }
          },
          kQuads);
    }
    bytes += Decoder::kWords ? 1024 : 512;
  }
}

}  // namespace
}  // namespace mxspec
