// Products of many int8 rows in the tile registers of AMX: one instruction multiplies a block of sixteen rows with the
// block of a row tile. The sums are exact integers as everywhere; they become floats, and are added up, in AVX-512.
#include "runtime/ops/kernels/isa_kernels.h"
#include "runtime/ops/kernels/matmul/matmul_avx512_tiles.h"

namespace mxspec {
namespace {

constexpr size_t kRowsOfTile = 16;
constexpr size_t kQuads = kBlock / 4;  // rows of a tile register of weights: 64 bytes, 16 outputs x 4 columns

// What LDTILECFG reads.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, kBlock, kBlock, 64, 64};  // sums, values, and weights, of two blocks
  uint8_t rows[16] = {kRowsOfTile, kRowsOfTile, kRowsOfTile, kRowsOfTile, kQuads, kQuads};
};
static_assert(sizeof(TileShapes) == 64);
constexpr TileShapes kShapes;  // not a local: GCC 12 takes LDTILECFG to read 8 bytes, and would drop the others

void begin_tiles() { _tile_loadconfig(&kShapes); }

void end_tiles() { _tile_release(); }

// Weights as signed bytes.
template <int kBits>
struct SignedBytes {
  static constexpr size_t kOfQuad = 1;
  __m512i table;

  explicit SignedBytes(const WeightElement& element) : table(load(element.bytes)) {}
  template <size_t>
  MXSPEC_INLINE __m512i operator()(__m512i codes) const {
    return kBits == 8 ? codes : _mm512_permutexvar_epi8(codes, table);
  }
};

template <int kBits>
void decode(const uint8_t* codes, const uint8_t* weight_scales, size_t blocks, const WeightElement& element,
            Decoded to) {
  constexpr size_t kTileCodeBytes = static_cast<size_t>(formats::code_bytes(kBits));
  const SignedBytes<kBits> decoder(element);
  auto* weights = static_cast<uint8_t*>(to.weights);
  for (size_t block = 0; block < blocks; ++block) {
    _mm512_storeu_ps(to.scales + block * kTileRows, decode_scales(weight_scales + block * kTileRows));
    for (size_t i = 0; i < kTileCodeBytes; i += 64) fetch(codes + kBytesAhead + i);
    for (size_t half = 0; half < 2; ++half) {
      for_decoded_half<kBits, 1>(
          codes + half * kTileCodeBytes / 2, 0, decoder,
          [&](size_t v, const __m512i* w) MXSPEC_LAMBDA { _mm512_storeu_si512(weights + v * 64, w[0]); },
          std::make_index_sequence<kQuads / 2>{});
      weights += kQuads / 2 * 64;
    }
    codes += kTileCodeBytes;
  }
}

// A block in three tile registers, whose numbers are literals: GCC writes them into the instructions as they stand.
#define MXSPEC_MULTIPLY_BLOCK(sums, values, weights, from_values, from_weights) \
  do {                                                                          \
    _tile_zero(sums);                                                           \
    _tile_loadd(values, from_values, kBlock);                                   \
    _tile_loadd(weights, from_weights, 64);                                     \
    _tile_dpbssd(sums, values, weights);                                        \
  } while (false)

// Two blocks at a time: while the tiles multiply two, the two before are stored, and those before these are added up.
// Where a group has fewer rows than a tile register, the register's others are read from behind them, and their sums
// ignored: the scratch memory of the values has room for int16.
template <size_t kRows>
void multiply_decoded(Decoded decoded, size_t blocks, QuantisedGroup group, float* acc) {
  const auto* const weights = static_cast<const uint8_t*>(decoded.weights);
  alignas(64) int32_t sums[4][kRowsOfTile][kTileRows];
  const auto multiply = [&](size_t block) MXSPEC_LAMBDA {
    const uint8_t* const values = group.q + block * kRows * kBlock;
    const uint8_t* const of_block = weights + block * kQuads * 64;
    if (block < blocks) MXSPEC_MULTIPLY_BLOCK(0, 2, 4, values, of_block);
    if (block + 1 < blocks) MXSPEC_MULTIPLY_BLOCK(1, 3, 5, values + kRows * kBlock, of_block + kQuads * 64);
  };
  __m512 totals[kRows];
  MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) totals[r] = _mm512_loadu_ps(acc + r * kTileRows);
  const auto add = [&](size_t block) MXSPEC_LAMBDA {
    const __m512 weight_scales = _mm512_loadu_ps(decoded.scales + block * kTileRows);
    MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
      const __m512i of_row = load(sums[block % 4][r]);
      totals[r] = add_block(totals[r], of_row, group.scales[block * kRows + r], weight_scales);
    }
  };
  multiply(0);
  for (size_t block = 0; block < blocks + 2; block += 2) {
    if (block < blocks) {
      _tile_stored(0, sums[block % 4], 64);
      _tile_stored(1, sums[block % 4 + 1], 64);
      multiply(block + 2);
    }
    if (block >= 2) add(block - 2);
    if (block >= 2 && block - 1 < blocks) add(block - 1);
  }
  MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) _mm512_storeu_ps(acc + r * kTileRows, totals[r]);
}

template <int kBits, size_t... kIndex>
MxKernels with_tiles(MxKernels kernels, std::index_sequence<kIndex...>) {
  kernels.group_rows = kRowsOfTile;
  kernels.decoded_tiles = kMostTiles;
  kernels.begin_decoded = begin_tiles;
  kernels.end_decoded = end_tiles;
  kernels.decode = decode<kBits>;
  ((kernels.multiply_decoded[kIndex + 1] = multiply_decoded<kIndex + 1>), ...);
  return kernels;
}

}  // namespace

MxKernelsByBits with_amx_tiles(const MxKernelsByBits& kernels) {
  constexpr std::make_index_sequence<kRowsOfTile> kRows;
  return {with_tiles<4>(kernels.four, kRows), with_tiles<6>(kernels.six, kRows), with_tiles<8>(kernels.eight, kRows)};
}

}  // namespace mxspec
