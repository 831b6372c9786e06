#include "runtime/ops/kernels/isa_kernels.h"
#include "runtime/ops/kernels/matmul/matmul_avx512_tiles.h"
#include "runtime/ops/kernels/matmul/quantise_avx512.h"

namespace mxspec {
namespace {

struct AddWords {
  static MXSPEC_INLINE __m512i add(__m512i sum, __m512i weights, __m512i x) {
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(weights, x));
    asm("" : "+v"(sum));  // or GCC adds the products up as a tree, and stores them all until then
    return sum;
  }
};

struct AddBytes {
  static MXSPEC_INLINE __m512i add(__m512i sum, __m512i weights, __m512i x) {
    const __m512i pairs = _mm512_maddubs_epi16(weights, x);
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
    asm("" : "+v"(sum));
    return sum;
  }
};

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

template <size_t kRows>
constexpr void set_fp16_rows(Fp16Kernels& kernels) {
  constexpr size_t kTiles = kRows <= 6 ? 4 : kRows <= 12 ? 2 : 1;
  kernels.tiles[kRows] = kTiles;
  kernels.multiply[kRows] = multiply_fp16<kTiles, kRows>;
}

template <size_t... kIndex>
constexpr Fp16Kernels fp16_kernels(std::index_sequence<kIndex...>) {
  Fp16Kernels kernels = {};
  kernels.most_rows = kMostRows;
  kernels.group_rows = 12;
  (set_fp16_rows<kIndex + 1>(kernels), ...);
  return kernels;
}

}  // namespace

constinit const RowQuantisers kQuantiseAvx512 = {quantise_row<Avx512Block, int16_t>, quantise_row<Avx512Block, int8_t>};
constinit const MxKernelsByBits kInt16Avx512 = {
    mx_kernels<4, Words<4>, AddWords>(), mx_kernels<6, Words<6>, AddWords>(), mx_kernels<8, Words<8>, AddWords>()};
// 255 * 127 * 2 leaves int16: rows of INT8 stay words.
constinit const MxKernelsByBits kInt8Avx512 = {
    mx_kernels<4, BytesOfWords, AddBytes>(), mx_kernels<6, BytesOfWords, AddBytes>(), {}};
constinit const Fp16Kernels kFp16Avx512 = fp16_kernels(std::make_index_sequence<kMostRows>{});

}  // namespace mxspec
