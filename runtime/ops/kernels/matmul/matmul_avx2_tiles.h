// The AVX2 kernels, written once and compiled for AVX2 and, with its instructions that multiply and add up, AVX-VNNI.
// Everything here has internal linkage, as in matmul_avx512_tiles.h.
//
// How products are added up is a Dot. Of words:
//   static void add(__m256i& sum, __m256i weights, __m256i x);    int16 weights, eight int32 sums
// Of bytes, unsigned weights and signed values:
//   static constexpr size_t kQuads;                               quads (of the eight) whose products make a part
//   static constexpr Starts kStarts;                              what the parts begin with
//   static void add(__m256i& part, __m256i weights, __m256i x);
//   static __m256i sum(__m256i part);                             its eight int32 sums
#pragma once

#include "runtime/ops/kernels/matmul/matmul_avx2_weights.h"

namespace mxspec {
namespace {

// Or GCC adds products up as a tree, storing them first.
MXSPEC_INLINE void in_order(__m256i& sum) { asm("" : "+x"(sum)); }

MXSPEC_INLINE __m256i broadcast_four_bytes(const uint8_t* q) {
  int32_t four;
  __builtin_memcpy(&four, q, sizeof four);
  return _mm256_set1_epi32(four);
}

MXSPEC_INLINE __m256i broadcast_four_words(const uint8_t* q) {
  int64_t four;
  __builtin_memcpy(&four, q, sizeof four);
  return _mm256_set1_epi64x(four);
}

// acc float[8] += float(sums) * scale * weight_scales
MXSPEC_INLINE void add_block(float* acc, __m256i sums, float scale, __m256 weight_scales) {
  const __m256 product = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(scale));
  _mm256_storeu_ps(acc, _mm256_fmadd_ps(product, weight_scales, _mm256_loadu_ps(acc)));
}

// Weights that are held until they are multiplied, in vectors of eight outputs: where parts are short, all of a part,
// so that one row's part at a time is under way; else one quad, for all rows at once.
template <class Dot, size_t kSides>
struct Held {
  static constexpr size_t kQuads = Dot::kQuads < 8 ? Dot::kQuads : 1;
  __m256i of[kQuads][kSides];
};

// Multiplies what is held once it is complete, `quad` being the last one of it.
template <class Dot, size_t kRows, size_t kSides>
MXSPEC_INLINE void add_held(const Held<Dot, kSides>& held, size_t quad, const uint8_t* q, const int32_t* starts,
                            __m256i (&parts)[kRows][kSides], __m256i (&sums)[kRows][kSides]) {
  constexpr size_t kHeld = Held<Dot, kSides>::kQuads;
  if (quad % kHeld != kHeld - 1) return;
  const size_t first = quad + 1 - kHeld, part = quad / Dot::kQuads;
  MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
    if (first % Dot::kQuads == 0) {
      const __m256i start = _mm256_set1_epi32(starts[r * (8 / Dot::kQuads) + part]);
      MXSPEC_UNROLL for (size_t side = 0; side < kSides; ++side) parts[r][side] = start;
    }
    MXSPEC_UNROLL for (size_t i = 0; i < kHeld; ++i) {
      const __m256i x = broadcast_four_bytes(q + r * kBlock + (first + i) * 4);
      MXSPEC_UNROLL for (size_t side = 0; side < kSides; ++side) Dot::add(parts[r][side], held.of[i][side], x);
    }
    if (quad % Dot::kQuads != Dot::kQuads - 1) continue;
    MXSPEC_UNROLL for (size_t side = 0; side < kSides; ++side) {
      const __m256i sum = Dot::sum(parts[r][side]);
      sums[r][side] = part == 0 ? sum : _mm256_add_epi32(sums[r][side], sum);
      in_order(sums[r][side]);
    }
  }
}

// The sums of a block for kRows rows and eight outputs, from the codes of these.
template <int kBits, class Decoder, class Dot, size_t kRows>
MXSPEC_INLINE void add_codes(const uint8_t* codes, const Decoder& decoder, const uint8_t* q, const int32_t* starts,
                             __m256i (&sums)[kRows][1]) {
  if constexpr (Decoder::kWords) {
    __m256i rows0145[kRows], rows2367[kRows];
    MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) rows0145[r] = rows2367[r] = _mm256_setzero_si256();
    const auto add_quad = [&](size_t quad, __m256i of_quad) MXSPEC_LAMBDA {
      const FourWords weights = decoder(of_quad);
      MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
        const __m256i x = broadcast_four_words(q + r * 2 * kBlock + quad * 8);
        Dot::add(rows0145[r], weights.rows0145, x);
        Dot::add(rows2367[r], weights.rows2367, x);
      }
    };
    for_codes<kBits>(codes, add_quad, kQuads);
    MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) sums[r][0] = _mm256_hadd_epi32(rows0145[r], rows2367[r]);
  } else {
    Held<Dot, 1> held;
    __m256i parts[kRows][1];
    const auto add_quad = [&](size_t quad, __m256i of_quad) MXSPEC_LAMBDA {
      held.of[quad % held.kQuads][0] = decoder(of_quad);
      add_held(held, quad, q, starts, parts, sums);
    };
    for_codes<kBits>(codes, add_quad, kQuads);
  }
}

// Few rows: the weights go from their codes into the products without a detour through memory.
template <int kBits, class Decoder, class Dot, size_t kRows>
void multiply_packed(const uint8_t* codes, const uint8_t* weight_scales, size_t tile_bytes, const uint8_t* next_codes,
                     size_t k_blocks, const WeightElement& element, QuantisedGroup group, float* acc) {
  constexpr size_t kTileCodeBytes = static_cast<size_t>(formats::code_bytes(kBits));
  constexpr size_t kBlocksAhead = kBytesAhead / kTileCodeBytes;
  const Decoder decoder(element);
  const uint8_t* q = group.q;
  const float* scales = group.scales;
  const int32_t* starts = group.starts;
  MXSPEC_UNROLL for (size_t i = 0; i < kRows * 2; ++i) _mm256_storeu_ps(acc + i * 8, _mm256_setzero_ps());
  for (size_t block = 0; block < k_blocks; ++block) {
    const size_t ahead = block + kBlocksAhead;
    const uint8_t* fetched =
        ahead < k_blocks ? codes + kBlocksAhead * kTileCodeBytes : next_codes + (ahead - k_blocks) * kTileCodeBytes;
    MXSPEC_UNROLL for (size_t i = 0; i < kTileCodeBytes; i += 64) fetch_line(fetched + i);
    fetch_line(weight_scales + tile_bytes);                  // of the next row tile
    MXSPEC_UNROLL for (size_t side = 0; side < 2; ++side) {  // eight of the sixteen output rows
      __m256i sums[kRows][1];
      add_codes<kBits, Decoder, Dot>(codes + side * 32, decoder, q, starts, sums);
      const __m256 weight_scale = decode_scales(weight_scales + side * 8);
      MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
        add_block(acc + r * kTileRows + side * 8, sums[r][0], scales[r], weight_scale);
      }
    }
    codes += kTileCodeBytes;
    weight_scales += kTileRows;
    q += kRows * kBlock * (Decoder::kWords ? 2 : 1);
    scales += kRows;
    if constexpr (!Decoder::kWords) starts += kRows * starts_of_block(Dot::kStarts);
  }
}

// The sums of a block for kRows rows and sixteen outputs, in two registers of eight, from decoded weights.
template <class Decoder, class Dot, size_t kRows>
MXSPEC_INLINE void add_decoded(const uint8_t* weights, const uint8_t* q, const int32_t* starts,
                               __m256i (&sums)[kRows][2]) {
  if constexpr (Decoder::kWords) {
    MXSPEC_UNROLL for (size_t i = 0; i < kRows * 2; ++i) sums[i / 2][i % 2] = _mm256_setzero_si256();
    MXSPEC_UNROLL for (size_t v = 0; v < kBlock / 2; ++v) {
      const __m256i w[] = {load(weights + v * 64), load(weights + v * 64 + 32)};
      MXSPEC_UNROLL for (size_t i = 0; i < kRows * 2; ++i) {
        Dot::add(sums[i / 2][i % 2], w[i % 2], broadcast_four_bytes(q + i / 2 * 2 * kBlock + v * 4));
      }
    }
  } else {
    Held<Dot, 2> held;
    __m256i parts[kRows][2];
    MXSPEC_UNROLL for (size_t quad = 0; quad < 8; ++quad) {
      held.of[quad % held.kQuads][0] = load(weights + quad * 64);
      held.of[quad % held.kQuads][1] = load(weights + quad * 64 + 32);
      add_held(held, quad, q, starts, parts, sums);
    }
  }
}

template <class Decoder, class Dot, size_t kRows>
void multiply_decoded(Decoded decoded, size_t blocks, QuantisedGroup group, float* acc) {
  constexpr size_t kValueBytes = Decoder::kWords ? 2 : 1;
  const auto* weights = static_cast<const uint8_t*>(decoded.weights);
  const int32_t* starts = group.starts;
  for (size_t block = 0; block < blocks; ++block) {
    __m256i sums[kRows][2];
    add_decoded<Decoder, Dot>(weights, group.q + block * kRows * kBlock * kValueBytes, starts, sums);
    MXSPEC_UNROLL for (size_t i = 0; i < kRows * 2; ++i) {
      add_block(acc + i * 8, sums[i / 2][i % 2], group.scales[block * kRows + i / 2],
                _mm256_loadu_ps(decoded.scales + block * kTileRows + i % 2 * 8));
    }
    weights += kTileRows * kBlock * kValueBytes;
    if constexpr (!Decoder::kWords) starts += kRows * starts_of_block(Dot::kStarts);
  }
}

template <class Decoder, class Dot>
constexpr Starts starts_of() {
  if constexpr (Decoder::kWords) {
    return Starts::kNone;
  } else {
    return Dot::kStarts;
  }
}

template <int kBits, class Decoder, class Dot, size_t kRows, size_t kGroupRows>
constexpr void set_rows(MxKernels& kernels) {
  kernels.tiles[kRows] = 1;
  kernels.multiply_packed[kRows] = multiply_packed<kBits, Decoder, Dot, kRows>;
  if constexpr (kRows <= kGroupRows) kernels.multiply_decoded[kRows] = multiply_decoded<Decoder, Dot, kRows>;
}

template <int kBits, class Decoder, class Dot, size_t kGroupRows, size_t... kIndex>
constexpr MxKernels mx_kernels(std::index_sequence<kIndex...>) {
  MxKernels kernels = {};
  kernels.most_rows = sizeof...(kIndex);
  kernels.group_rows = kGroupRows;
  kernels.starts = starts_of<Decoder, Dot>();
  kernels.decode = decode<kBits, Decoder>;
  (set_rows<kBits, Decoder, Dot, kIndex + 1, kGroupRows>(kernels), ...);
  return kernels;
}

// Up to kMostRows rows decode in registers; more are cut into groups of kGroupRows that share decoded weights.
template <int kBits, class Decoder, class Dot, size_t kMostRows, size_t kGroupRows>
constexpr MxKernels mx_kernels() {
  static_assert(kGroupRows <= kMostRows);
  return mx_kernels<kBits, Decoder, Dot, kGroupRows>(std::make_index_sequence<kMostRows>{});
}

}  // namespace
}  // namespace mxspec
