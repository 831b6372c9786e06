// The AVX-512 kernels, written once and compiled twice: matmul_avx512.cpp and matmul_avx512vnni.cpp differ in Dot,
// which adds the products of 16 pairs of int16 to 16 int32. Everything here has internal linkage, and nothing of the
// standard library is called, so that no function compiled for AVX-512 can be picked by the linker for the portable
// code.
#pragma once

#include <immintrin.h>

// GCC 12 takes the deliberately undefined registers of its own intrinsics for a mistake (its bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#include "runtime/ops/kernels/matmul_kernels.h"

namespace mxspec {
namespace {

#define MXSPEC_INLINE inline __attribute__((always_inline))
#define MXSPEC_UNROLL _Pragma("GCC unroll 32")

MXSPEC_INLINE __m512i load(const void* bytes) { return _mm512_loadu_si512(bytes); }

MXSPEC_INLINE __m512i broadcast_pair(const int16_t* q) {
  int32_t pair;
  __builtin_memcpy(&pair, q, sizeof pair);
  return _mm512_set1_epi32(pair);
}

// 64 int16 in two registers; vpermt2w looks at the low 6 bits of each lane only, so codes need no masking.
struct Table {
  __m512i low, high;

  explicit Table(const Mxfp6Element& element) : low(load(element.table)), high(load(element.table + 32)) {}
  MXSPEC_INLINE __m512i operator()(__m512i codes) const { return _mm512_permutex2var_epi16(low, codes, high); }
};

// Hands the eight vectors of half a tile (192 bytes; matmul_scalar.cpp has the picture) to use(v, weights).
template <class Use>
MXSPEC_INLINE void for_decoded_half(const uint8_t* codes, const Table& table, Use use) {
  const __m512i w0 = load(codes), w1 = load(codes + 64), w2 = load(codes + 128);
  const __m512i high_bits = _mm512_set1_epi16(0x30);
  constexpr int kOrAnd = 0xF8;  // a | (b & c)
  use(0, table(w0));
  use(1, table(_mm512_srli_epi16(w0, 6)));
  use(2, table(w1));
  use(3, table(_mm512_srli_epi16(w1, 6)));
  use(4, table(w2));
  use(5, table(_mm512_srli_epi16(w2, 6)));
  use(6, table(_mm512_ternarylogic_epi32(_mm512_srli_epi16(w0, 12), _mm512_srli_epi16(w2, 8), high_bits, kOrAnd)));
  use(7, table(_mm512_ternarylogic_epi32(_mm512_srli_epi16(w1, 12), _mm512_srli_epi16(w2, 10), high_bits, kOrAnd)));
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

template <class Dot, size_t kRows>
void multiply_packed(const uint8_t* codes, const uint8_t* weight_scales, size_t k_blocks, const Mxfp6Element& element,
                     QuantisedGroup group, float* out) {
  const Table table(element);
  __m512 acc[kRows];
  MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) acc[r] = _mm512_setzero_ps();
  const int16_t* q = group.q;
  const float* scales = group.scales;
  for (size_t block = 0; block < k_blocks; ++block) {
    __m512i sums[kRows];
    MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) sums[r] = _mm512_setzero_si512();
    MXSPEC_UNROLL for (size_t half = 0; half < 2; ++half) {
      for_decoded_half(codes + half * 192, table, [&](size_t v, __m512i weights) __attribute__((always_inline)) {
        MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
          sums[r] = Dot::add(sums[r], weights, broadcast_pair(q + r * kBlock + half * 16 + v * 2));
        }
      });
    }
    const __m512 weight_scale = decode_scales(weight_scales);
    MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) acc[r] = add_block(acc[r], sums[r], scales[r], weight_scale);
    codes += kMxfp6TileBytes;
    weight_scales += kTileRows;
    q += kRows * kBlock;
    scales += kRows;
  }
  MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) _mm512_storeu_ps(out + r * kTileRows, acc[r]);
}

void decode(const uint8_t* codes, size_t blocks, const Mxfp6Element& element, size_t tiles, int16_t* weights) {
  const Table table(element);
  for (size_t half = 0; half < blocks * 2; ++half, codes += 192, weights += 8 * tiles * 32) {
    for_decoded_half(codes, table, [&](size_t v, __m512i w) { _mm512_storeu_si512(weights + v * tiles * 32, w); });
  }
}

template <class Dot, size_t kTiles, size_t kRows>
void multiply_decoded(const int16_t* weights, const float* weight_scales, size_t blocks, QuantisedGroup group,
                      float* acc) {
  const int16_t* q = group.q;
  const float* scales = group.scales;
  for (size_t block = 0; block < blocks; ++block) {
    __m512i sums[kRows][kTiles];
    MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
      MXSPEC_UNROLL for (size_t t = 0; t < kTiles; ++t) sums[r][t] = _mm512_setzero_si512();
    }
    for (size_t v = 0; v < kTileVectors; ++v) {
      __m512i w[kTiles];
      MXSPEC_UNROLL for (size_t t = 0; t < kTiles; ++t) w[t] = load(weights + t * 32);
      MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
        const __m512i x = broadcast_pair(q + r * kBlock + v * 2);
        MXSPEC_UNROLL for (size_t t = 0; t < kTiles; ++t) sums[r][t] = Dot::add(sums[r][t], w[t], x);
      }
      weights += kTiles * 32;
    }
    MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
      MXSPEC_UNROLL for (size_t t = 0; t < kTiles; ++t) {
        float* out = acc + (r * kTiles + t) * kTileRows;
        const __m512 weight_scale = _mm512_loadu_ps(weight_scales + t * kTileRows);
        _mm512_storeu_ps(out, add_block(_mm512_loadu_ps(out), sums[r][t], scales[r], weight_scale));
      }
    }
    weight_scales += kTiles * kTileRows;
    q += kRows * kBlock;
    scales += kRows;
  }
}

template <size_t kTiles, size_t kRows>
void multiply_fp16(const uint8_t* weights, size_t tile_bytes, size_t k_count, const float* values, float* out) {
  __m512 acc[kRows][kTiles];
  MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
    MXSPEC_UNROLL for (size_t t = 0; t < kTiles; ++t) acc[r][t] = _mm512_loadu_ps(out + (r * kTiles + t) * kTileRows);
  }
  for (size_t first = 0; first < k_count; first += kBlock, values += kRows * kBlock) {
    const size_t count = k_count - first < kBlock ? k_count - first : kBlock;
    for (size_t k = 0; k < count; ++k, weights += kTileRows * 2) {
      __m512 w[kTiles];
      MXSPEC_UNROLL for (size_t t = 0; t < kTiles; ++t) {
        w[t] = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + t * tile_bytes)));
      }
      MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
        const __m512 x = _mm512_set1_ps(values[r * kBlock + k]);
        MXSPEC_UNROLL for (size_t t = 0; t < kTiles; ++t) acc[r][t] = _mm512_fmadd_ps(w[t], x, acc[r][t]);
      }
    }
  }
  MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
    MXSPEC_UNROLL for (size_t t = 0; t < kTiles; ++t) _mm512_storeu_ps(out + (r * kTiles + t) * kTileRows, acc[r][t]);
  }
}

// For each number of rows the number of row tiles that fills the registers with independent sums.
template <class Dot>
constexpr MatmulKernels kernels_avx512() {
  MatmulKernels k = {};
  k.quantise_row = quantise_row_avx512;
  k.decode = decode;
  k.packed_rows = 16;
  k.decoded_rows = 12;
  k.decoded_tiles = 2;
  k.fp16_rows = 16;
#define MXSPEC_ROWS(rows, tiles)                                \
  k.multiply_packed[rows] = multiply_packed<Dot, rows>;         \
  k.multiply_decoded[0][rows] = multiply_decoded<Dot, 1, rows>; \
  k.fp16_tiles[rows] = tiles;                                   \
  k.multiply_fp16[0][rows] = multiply_fp16<1, rows>;            \
  k.multiply_fp16[1][rows] = multiply_fp16<tiles, rows>;
#define MXSPEC_ROWS_2(rows, tiles) \
  MXSPEC_ROWS(rows, tiles) k.multiply_decoded[1][rows] = multiply_decoded<Dot, 2, rows>;
  MXSPEC_ROWS_2(1, 4)
  MXSPEC_ROWS_2(2, 4)
  MXSPEC_ROWS_2(3, 4)
  MXSPEC_ROWS_2(4, 4)
  MXSPEC_ROWS_2(5, 4)
  MXSPEC_ROWS_2(6, 4)
  MXSPEC_ROWS_2(7, 2)
  MXSPEC_ROWS_2(8, 2)
  MXSPEC_ROWS_2(9, 2)
  MXSPEC_ROWS_2(10, 2)
  MXSPEC_ROWS_2(11, 2)
  MXSPEC_ROWS_2(12, 2)
  MXSPEC_ROWS(13, 1)
  MXSPEC_ROWS(14, 1)
  MXSPEC_ROWS(15, 1)
  MXSPEC_ROWS(16, 1)
#undef MXSPEC_ROWS
#undef MXSPEC_ROWS_2
  return k;
}

}  // namespace
}  // namespace mxspec
