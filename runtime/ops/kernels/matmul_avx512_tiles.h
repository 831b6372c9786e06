// The AVX-512 kernels, written once and compiled twice: matmul_avx512.cpp and matmul_avx512vnni.cpp differ in Dot,
// which adds the products of 16 pairs of int16 to 16 int32. Everything here has internal linkage, and nothing of the
// standard library is called, so that no function compiled for AVX-512 can be picked by the linker for the portable
// code.
#pragma once

#include <immintrin.h>

// GCC 12 takes the deliberately undefined registers of its own intrinsics for a mistake (its bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#include <utility>

#include "runtime/ops/kernels/compiler.h"
#include "runtime/ops/kernels/matmul_kernels.h"

namespace mxspec {
namespace {

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

// Hands the eight vectors of half a tile (192 bytes; matmul_scalar.cpp has the picture) of kTiles tiles, tile_bytes
// apart, to use(v, weights[kTiles]).
template <size_t kTiles, class Use>
MXSPEC_INLINE void for_decoded_half(const uint8_t* half, size_t tile_bytes, const Table& table, Use use) {
  const auto decoded = [&](size_t v, auto codes) MXSPEC_LAMBDA {
    __m512i weights[kTiles];
    MXSPEC_UNROLL for (size_t t = 0; t < kTiles; ++t) weights[t] = table(codes(half + t * tile_bytes));
    use(v, weights);
  };
  // Vectors 6 and 7 have their high two bits in word 2.
  const auto join = [](__m512i low, __m512i high)
                        MXSPEC_LAMBDA { return _mm512_ternarylogic_epi32(low, high, _mm512_set1_epi16(0x30), 0xF8); };
  decoded(0, [](const uint8_t* p) MXSPEC_LAMBDA { return load(p); });
  decoded(1, [](const uint8_t* p) MXSPEC_LAMBDA { return _mm512_srli_epi16(load(p), 6); });
  decoded(2, [](const uint8_t* p) MXSPEC_LAMBDA { return load(p + 64); });
  decoded(3, [](const uint8_t* p) MXSPEC_LAMBDA { return _mm512_srli_epi16(load(p + 64), 6); });
  decoded(4, [](const uint8_t* p) MXSPEC_LAMBDA { return load(p + 128); });
  decoded(5, [](const uint8_t* p) MXSPEC_LAMBDA { return _mm512_srli_epi16(load(p + 128), 6); });
  decoded(6, [&](const uint8_t* p)
                 MXSPEC_LAMBDA { return join(_mm512_srli_epi16(load(p), 12), _mm512_srli_epi16(load(p + 128), 8)); });
  decoded(7, [&](const uint8_t* p) MXSPEC_LAMBDA {
    return join(_mm512_srli_epi16(load(p + 64), 12), _mm512_srli_epi16(load(p + 128), 10));
  });
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
// bandwidth at m = 1 and half at m = 8: a block takes so many instructions that few of its misses are under way at
// once.
constexpr size_t kBlocksAhead = 12;
constexpr size_t kFp16BytesAhead = 3072;

MXSPEC_INLINE void fetch(const uint8_t* bytes) { _mm_prefetch(reinterpret_cast<const char*>(bytes), _MM_HINT_T0); }

template <class Dot, size_t kTiles, size_t kRows>
void multiply_packed(const uint8_t* codes, const uint8_t* weight_scales, size_t tile_bytes, const uint8_t* next_codes,
                     size_t k_blocks, const Mxfp6Element& element, QuantisedGroup group, float* acc) {
  // Two sums for each output where there are few, since an addition to a sum waits four cycles for the one before.
  constexpr size_t kOutputs = kTiles * kRows, kSums = kOutputs <= 8 ? 2 : 1;
  constexpr bool kInRegisters = kTiles == 1 || kOutputs <= 8;
  const Table table(element);
  const int16_t* q = group.q;
  const float* scales = group.scales;
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
        ahead < k_blocks ? codes + kBlocksAhead * kMxfp6TileBytes : next_codes + (ahead - k_blocks) * kMxfp6TileBytes;
    MXSPEC_UNROLL for (size_t t = 0; t < kTiles; ++t) {
      MXSPEC_UNROLL for (size_t i = 0; i < kMxfp6TileBytes; i += 64) fetch(fetched + t * tile_bytes + i);
      fetch(weight_scales + (kTiles + t) * tile_bytes);
    }
    __m512i sums[kOutputs * kSums];
    MXSPEC_UNROLL for (size_t i = 0; i < kOutputs * kSums; ++i) sums[i] = _mm512_setzero_si512();
    MXSPEC_UNROLL for (size_t half = 0; half < 2; ++half) {
      const int16_t* half_q = q + half * 16;
      for_decoded_half<kTiles>(codes + half * 192, tile_bytes, table, [&](size_t v, const __m512i* w) MXSPEC_LAMBDA {
        MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
          const __m512i x = broadcast_pair(half_q + r * kBlock + v * 2);
          MXSPEC_UNROLL for (size_t t = 0; t < kTiles; ++t) {
            __m512i& sum = sums[(r * kTiles + t) * kSums + v % kSums];
            sum = Dot::add(sum, w[t], x);
          }
        }
      });
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
    codes += kMxfp6TileBytes;
    weight_scales += kTileRows;
    q += kRows * kBlock;
    scales += kRows;
  }
  if constexpr (kInRegisters) {
    MXSPEC_UNROLL for (size_t i = 0; i < kOutputs; ++i) _mm512_storeu_ps(acc + i * kTileRows, totals[i]);
  }
}

template <size_t kTiles, size_t kRows>
void multiply_fp16(const uint8_t* weights, size_t tile_bytes, size_t next, size_t k_count, const float* values,
                   float* out) {
  constexpr size_t kOutputs = kTiles * kRows;
  __m512 acc[kOutputs];
  MXSPEC_UNROLL for (size_t i = 0; i < kOutputs; ++i) acc[i] = _mm512_loadu_ps(out + i * kTileRows);
  for (size_t first = 0; first < k_count; first += kBlock) {
    const size_t count = k_count - first < kBlock ? k_count - first : kBlock;
    for (size_t k = 0; k < count; ++k) {
      if (k % 2 == 0) {  // two of k are a cache line
        const bool in_range = (first + k) * kTileRows * 2 + kFp16BytesAhead < k_count * kTileRows * 2;
        const uint8_t* fetched = weights + kFp16BytesAhead + (in_range ? 0 : next);
        MXSPEC_UNROLL for (size_t t = 0; t < kTiles; ++t) fetch(fetched + t * tile_bytes);
      }
      __m512 w[kTiles];
      MXSPEC_UNROLL for (size_t t = 0; t < kTiles; ++t) {
        w[t] = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + t * tile_bytes)));
      }
      MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
        const __m512 x = _mm512_set1_ps(values[r * kBlock + k]);
        MXSPEC_UNROLL for (size_t t = 0; t < kTiles; ++t) {
          acc[r * kTiles + t] = _mm512_fmadd_ps(w[t], x, acc[r * kTiles + t]);
        }
      }
      weights += kTileRows * 2;
    }
    values += kRows * kBlock;
  }
  MXSPEC_UNROLL for (size_t i = 0; i < kOutputs; ++i) _mm512_storeu_ps(out + i * kTileRows, acc[i]);
}

template <class Dot, size_t kRows>
constexpr void set_rows(MatmulKernels& kernels) {
  // Row tiles taken together: as many as leave room for the sums in 32 registers. They share the broadcast activations.
  constexpr size_t kTiles = kRows <= 12 ? 2 : 1;
  constexpr size_t kFp16Tiles = kRows <= 6 ? 4 : kTiles;
  kernels.packed_tiles[kRows] = kTiles;
  kernels.multiply_packed[kRows] = multiply_packed<Dot, kTiles, kRows>;
  kernels.fp16_tiles[kRows] = kFp16Tiles;
  kernels.multiply_fp16[kRows] = multiply_fp16<kFp16Tiles, kRows>;
}

template <class Dot, size_t... kIndex>
constexpr MatmulKernels kernels_avx512(std::index_sequence<kIndex...>) {
  MatmulKernels kernels = {};
  kernels.most_rows = kMostRows;
  kernels.group_rows = 12;
  kernels.quantise_row = quantise_row_avx512;
  (set_rows<Dot, kIndex + 1>(kernels), ...);
  return kernels;
}

}  // namespace
}  // namespace mxspec
