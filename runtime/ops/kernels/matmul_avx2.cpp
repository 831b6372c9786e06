#if defined(__x86_64__)
#include <immintrin.h>

#include "runtime/ops/kernels/compiler.h"
#include "runtime/ops/kernels/matmul_kernels.h"

namespace mxspec {
namespace {

inline __m256i load(const void* bytes) { return _mm256_loadu_si256(static_cast<const __m256i*>(bytes)); }

// Weights are asked for this early.
constexpr size_t kBytesAhead = 3072;
constexpr size_t kBlocksAhead = kBytesAhead / kMxfp6TileBytes;
MXSPEC_INLINE void fetch_line(const uint8_t* bytes) { _mm_prefetch(reinterpret_cast<const char*>(bytes), _MM_HINT_T0); }
MXSPEC_INLINE void fetch(const uint8_t* bytes) { fetch_line(bytes + kBytesAhead); }

// A register of 32 codes, one a byte, to two of int16. matmul_scalar.cpp has the picture of a tile: the codes of two
// vectors of one k parity are the two bytes of a word, so the bytes of an output row are k, k + 2, k + 1, k + 3, and
// quantise_row_avx2 stores the activations in that order.
class Decoder {
 public:
  explicit Decoder(const Mxfp6Element& element)
      : low_(_mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(element.low)))),
        high_(_mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(element.high)))),
        units_(_mm256_set1_epi16(static_cast<int16_t>(1 | 256 << element.high_shift))) {}

  // Hands the codes of eight output rows of half a tile, four k at a time, to use(k, rows 0 1 4 5, rows 2 3 6 7).
  template <class Use>
  MXSPEC_INLINE void half(const uint8_t* words, const Use& use) const {
    const __m256i w0 = load(words), w1 = load(words + 64), w2 = load(words + 128);
    const __m256i low4 = bytes(_mm256_srli_epi16(w0, 12), _mm256_srli_epi16(w1, 4));
    const __m256i high2 = bytes(_mm256_srli_epi16(w2, 8), _mm256_srli_epi16(w2, 2));
    decode({bytes(w0, times_four(w0)), bytes(w1, times_four(w1))}, 0, use);
    decode({bytes(w2, times_four(w2)), _mm256_or_si256(low4, _mm256_and_si256(high2, _mm256_set1_epi8(0x30)))}, 8, use);
  }

 private:
  // The lower bytes of the words of one, the upper bytes of those of the other.
  static MXSPEC_INLINE __m256i bytes(__m256i lower, __m256i upper) {
    return _mm256_blendv_epi8(lower, upper, _mm256_set1_epi16(-0x100));
  }

  // A shift, in the multipliers: the shifters are the same pipes as the look-ups', which have enough to do.
  static MXSPEC_INLINE __m256i times_four(__m256i words) {
    __m256i four = _mm256_set1_epi16(4);
    asm("" : "+x"(four));  // or GCC makes the shift of it
    return _mm256_mullo_epi16(words, four);
  }

  // Byte look-ups of 16 entries give the magnitudes of the codes 0..15 and, in larger units, those of 16..31; an index
  // with its top bit set gives 0, so that each of the two gives 0 for the codes of the other. Two registers at a time,
  // step by step: one alone waits for itself at every step.
  template <class Use>
  MXSPEC_INLINE void decode(const __m256i (&codes)[2], size_t k, const Use& use) const {
    __m256i small[2], large[2], sign[2];
    MXSPEC_UNROLL for (size_t i = 0; i < 2; ++i) {
      const __m256i index = _mm256_and_si256(codes[i], _mm256_set1_epi8(31));
      sign[i] = times_four(codes[i]);  // in the top bit of each byte, which is 0 only where the code is
      small[i] = _mm256_add_epi8(index, _mm256_set1_epi8(0x70));
      large[i] = _mm256_add_epi8(index, _mm256_set1_epi8(-0x10));
    }
    MXSPEC_UNROLL for (size_t i = 0; i < 2; ++i) {
      small[i] = _mm256_shuffle_epi8(low_, small[i]);
      large[i] = _mm256_shuffle_epi8(high_, large[i]);
    }
    MXSPEC_UNROLL for (size_t i = 0; i < 2; ++i) {
      small[i] = _mm256_sign_epi8(small[i], sign[i]);
      large[i] = _mm256_sign_epi8(large[i], sign[i]);
    }
    MXSPEC_UNROLL for (size_t i = 0; i < 2; ++i) {
      use(k + i * 4, _mm256_maddubs_epi16(units_, _mm256_unpacklo_epi8(small[i], large[i])),
          _mm256_maddubs_epi16(units_, _mm256_unpackhi_epi8(small[i], large[i])));
    }
  }

  __m256i low_, high_, units_;
};

// Stores decoded weights as vectors of 16 output rows by two k: k and k + 2, then k + 1 and k + 3.
void decode(const uint8_t* codes, size_t blocks, const Mxfp6Element& element, int16_t* weights) {
  const Decoder decoder(element);
  for (size_t half = 0; half < blocks * 2; ++half, codes += 192, weights += 8 * 32) {
    for (size_t i = 0; i < 192; i += 64) fetch(codes + i);
    for (size_t lanes = 0; lanes < 32; lanes += 16) {
      decoder.half(codes + lanes * 2, [&](size_t k, __m256i rows0145, __m256i rows2367) MXSPEC_LAMBDA {
        const __m256 a = _mm256_castsi256_ps(rows0145), b = _mm256_castsi256_ps(rows2367);
        float* const to = reinterpret_cast<float*>(weights + k * 16 + lanes);
        _mm256_storeu_ps(to, _mm256_shuffle_ps(a, b, 0x88));
        _mm256_storeu_ps(to + 16, _mm256_shuffle_ps(a, b, 0xDD));
      });
    }
  }
}

MXSPEC_INLINE __m256i broadcast_pair(const int16_t* q) {
  int32_t pair;
  __builtin_memcpy(&pair, q, sizeof pair);
  return _mm256_set1_epi32(pair);
}

MXSPEC_INLINE __m256i broadcast_four(const int16_t* q) {
  int64_t four;
  __builtin_memcpy(&four, q, sizeof four);
  return _mm256_set1_epi64x(four);
}

MXSPEC_INLINE void add_products(__m256i& sum, __m256i weights, __m256i x) {
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(weights, x));
  asm("" : "+x"(sum));  // or GCC adds the products up as a tree, storing them first
}

// acc float[8] += float(sums) * scale * weight_scales
MXSPEC_INLINE void add_block(float* acc, __m256i sums, float scale, __m256 weight_scales) {
  const __m256 product = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(scale));
  _mm256_storeu_ps(acc, _mm256_fmadd_ps(product, weight_scales, _mm256_loadu_ps(acc)));
}

// Eight of 2^(scale - 127); byte 0 is 2^-127, a subnormal.
MXSPEC_INLINE __m256 decode_scales(const uint8_t* scales) {
  const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales)));
  return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_slli_epi32(bytes, 23), _mm256_set1_epi32(0x00400000)));
}

// Few rows: the weights go from their codes into the products without a detour through memory.
template <size_t kRows>
void multiply_packed(const uint8_t* codes, const uint8_t* weight_scales, size_t tile_bytes, const uint8_t* next_codes,
                     size_t k_blocks, const Mxfp6Element& element, QuantisedGroup group, float* acc) {
  const Decoder decoder(element);
  const int16_t* q = group.q;
  const float* scales = group.scales;
  MXSPEC_UNROLL for (size_t i = 0; i < kRows * 2; ++i) _mm256_storeu_ps(acc + i * 8, _mm256_setzero_ps());
  for (size_t block = 0; block < k_blocks; ++block) {
    const size_t ahead = block + kBlocksAhead;
    const uint8_t* fetched =
        ahead < k_blocks ? codes + kBlocksAhead * kMxfp6TileBytes : next_codes + (ahead - k_blocks) * kMxfp6TileBytes;
    MXSPEC_UNROLL for (size_t i = 0; i < kMxfp6TileBytes; i += 64) fetch_line(fetched + i);
    fetch_line(weight_scales + tile_bytes);                  // of the next row tile
    MXSPEC_UNROLL for (size_t side = 0; side < 2; ++side) {  // eight of the sixteen output rows
      __m256i sums[kRows][2];
      MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
      MXSPEC_UNROLL for (size_t half = 0; half < 2; ++half) {
        decoder.half(codes + half * 192 + side * 32, [&](size_t k, __m256i rows0145, __m256i rows2367) MXSPEC_LAMBDA {
          MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
            const __m256i x = broadcast_four(q + r * kBlock + half * 16 + k);
            add_products(sums[r][0], rows0145, x);
            add_products(sums[r][1], rows2367, x);
          }
        });
      }
      const __m256 weight_scale = decode_scales(weight_scales + side * 8);
      MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
        add_block(acc + r * kTileRows + side * 8, _mm256_hadd_epi32(sums[r][0], sums[r][1]), scales[r], weight_scale);
      }
    }
    codes += kMxfp6TileBytes;
    weight_scales += kTileRows;
    q += kRows * kBlock;
    scales += kRows;
  }
}

// A row tile is two registers of eight outputs.
template <size_t kRows>
void multiply_decoded(const int16_t* weights, const float* weight_scales, size_t blocks, QuantisedGroup group,
                      float* acc) {
  for (size_t block = 0; block < blocks; ++block) {
    __m256i sums[kRows][2];
    MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
    const int16_t* q = group.q + block * kRows * kBlock;
    MXSPEC_UNROLL for (size_t v = 0; v < kTileVectors; ++v, weights += 32) {
      const __m256i w0 = load(weights), w1 = load(weights + 16);
      MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
        const __m256i x = broadcast_pair(q + r * kBlock + v * 2);
        add_products(sums[r][0], w0, x);
        add_products(sums[r][1], w1, x);
      }
    }
    MXSPEC_UNROLL for (size_t i = 0; i < kRows * 2; ++i) {
      add_block(acc + i * 8, sums[i / 2][i % 2], group.scales[block * kRows + i / 2],
                _mm256_loadu_ps(weight_scales + block * kTileRows + i % 2 * 8));
    }
  }
}

template <size_t kRows>
void multiply_fp16(const uint8_t* weights, size_t, size_t, size_t k_count, const float* values, float* out) {
  __m256 acc[kRows][2];
  MXSPEC_UNROLL for (size_t i = 0; i < kRows * 2; ++i) acc[i / 2][i % 2] = _mm256_loadu_ps(out + i * 8);
  for (size_t first = 0; first < k_count; first += kBlock, values += kRows * kBlock) {
    const size_t count = k_count - first < kBlock ? k_count - first : kBlock;
    for (size_t k = 0; k < count; ++k, weights += kTileRows * 2) {
      const __m256 w0 = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weights)));
      if (k % 2 == 0) fetch(weights);  // two of k are a cache line
      const __m256 w1 = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weights + 16)));
      MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
        const __m256 x = _mm256_broadcast_ss(values + r * kBlock + k);
        acc[r][0] = _mm256_fmadd_ps(w0, x, acc[r][0]);
        acc[r][1] = _mm256_fmadd_ps(w1, x, acc[r][1]);
      }
    }
  }
  MXSPEC_UNROLL for (size_t i = 0; i < kRows * 2; ++i) _mm256_storeu_ps(out + i * 8, acc[i / 2][i % 2]);
}

constexpr MatmulKernels kKernels = {
    .most_rows = 4,
    .group_rows = 4,
    .quantise_row = quantise_row_avx2,
    .packed_tiles = {0, 1, 1, 1, 1},
    .multiply_packed = {nullptr, multiply_packed<1>, multiply_packed<2>, multiply_packed<3>, multiply_packed<4>},
    .decode = decode,
    .multiply_decoded = {nullptr, multiply_decoded<1>, multiply_decoded<2>, multiply_decoded<3>, multiply_decoded<4>},
    .fp16_tiles = {0, 1, 1, 1, 1},
    .multiply_fp16 = {nullptr, multiply_fp16<1>, multiply_fp16<2>, multiply_fp16<3>, multiply_fp16<4>},
};

}  // namespace

const MatmulKernels& matmul_kernels_avx2() { return kKernels; }

}  // namespace mxspec
#endif
