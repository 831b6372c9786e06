// The product of a call's prepared rows with some of its row tiles.
#include <cstring>

#include "runtime/ops/kernels/matmul/matmul_call.h"

namespace mxspec {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kPanelBlocks = 8;      // k blocks that are decoded at a time: 8 KB stay in the first-level cache
constexpr size_t kFp16PanelBlocks = 8;  // k blocks of fp16 that all groups read, one after the other: 2 x 8 KB

// The row tiles of one call of a kernel. `count` are computed; only the first `kept` are wanted. Where these are fewer,
// all are the first one (tile_bytes = 0).
struct Tiles {
  size_t first, count, kept;

  size_t bytes(const MatmulCall& call) const { return kept < count ? 0 : call.row_tile_bytes(); }
};

// acc float[rows][count][16] to the rows of a group.
void store(const MatmulCall& call, size_t group, const Tiles& tiles, const float* acc) {
  const size_t n = call.shape.n, first_row = call.groups.first(group), rows = call.groups.rows(group);
  const float* bias = call.operands.bias;
  for (size_t r = 0; r < rows; ++r, acc += tiles.count * kTileRows) {
    for (size_t t = 0; t < tiles.kept; ++t) {
      const size_t column = (tiles.first + t) * kTileRows;
      const float* sums = acc + t * kTileRows;
      float* out = call.operands.out + (first_row + r) * n + column;
      if (column + kTileRows <= n) {  // of constant size: no call
        std::memcpy(out, sums, kTileRows * sizeof(float));
      } else {
        std::memcpy(out, sums, (n - column) * sizeof(float));
      }
      if (bias == nullptr) continue;
      for (size_t i = 0; i < std::min(kTileRows, n - column); ++i) out[i] = sums[i] + bias[column + i];
    }
  }
}

// The groups [first, last): at most kPanelRows rows, which share the weights of some row tiles.
struct GroupRange {
  size_t first, last;
};

// Each group's part of acc float[rows of the range][count][16] to body(group, part).
template <class Body>
void for_groups(const MatmulCall& call, const Tiles& tiles, GroupRange range, float* acc, Body body) {
  for (size_t group = range.first; group < range.last; ++group) {
    body(group, acc);
    acc += call.groups.rows(group) * tiles.count * kTileRows;
  }
}

// No more of it than is used: for eight rows that is a twentieth of the whole.
void clear(const MatmulCall& call, const Tiles& tiles, GroupRange range, float* acc) {
  const size_t rows = (range.last - range.first) * call.groups.rows(0);
  std::memset(acc, 0, rows * tiles.count * kTileRows * sizeof(float));
}

void multiply_packed_tiles(const MatmulCall& call, const Tiles& tiles, GroupRange range) {
  alignas(kAlignment) float acc[kMostRows * kMostTiles * kTileRows];
  const uint8_t* codes = call.row_tile(tiles.first);
  for (size_t group = range.first; group < range.last; ++group) {
    const uint8_t* next_codes = group + 1 < range.last ? codes : call.row_tile(tiles.first + tiles.kept);
    call.mx.multiply_packed[call.groups.rows(group)](codes, call.weight_scales(tiles.first), tiles.bytes(call),
                                                     next_codes, call.shape.k_blocks(), call.element,
                                                     call.quantised(group, 0), acc);
    store(call, group, tiles, acc);
  }
}

// A panel: a few k blocks of a row tile, decoded.
struct Panel {
  alignas(kAlignment) int16_t weights[kPanelBlocks * kTileRows * kBlock];
  alignas(kAlignment) float scales[kPanelBlocks * kTileRows];

  Decoded decoded() { return {weights, scales}; }
};

void decode_panel(const MatmulCall& call, size_t tile, size_t block, size_t blocks, Panel& panel) {
  const uint8_t* scales = call.weight_scales(tile) + block * kTileRows;
  call.mx.decode(call.row_tile(tile) + block * call.tile_code_bytes(), scales, blocks, call.element, panel.decoded());
}

// Up to kMostTiles row tiles that a group's rows are read for once.
void multiply_decoded_tiles(const MatmulCall& call, size_t first, size_t count, GroupRange range) {
  Panel panels[kMostTiles];
  alignas(kAlignment) float acc[kMostTiles][kPanelRows * kTileRows];
  const auto tile = [&](size_t t) { return Tiles{first + t, 1, 1}; };
  for (size_t t = 0; t < count; ++t) clear(call, tile(t), range, acc[t]);
  if (call.mx.begin_decoded != nullptr) call.mx.begin_decoded();
  for (size_t block = 0; block < call.shape.k_blocks(); block += kPanelBlocks) {
    const size_t blocks = std::min(kPanelBlocks, call.shape.k_blocks() - block);
    for (size_t t = 0; t < count; ++t) decode_panel(call, first + t, block, blocks, panels[t]);
    for_groups(call, tile(0), range, acc[0], [&](size_t group, const float* part) {
      const auto multiply = call.mx.multiply_decoded[call.groups.rows(group)];
      for (size_t t = 0; t < count; ++t) {
        multiply(panels[t].decoded(), blocks, call.quantised(group, block), acc[t] + (part - acc[0]));
      }
    });
  }
  if (call.mx.end_decoded != nullptr) call.mx.end_decoded();
  for (size_t t = 0; t < count; ++t) {
    for_groups(call, tile(t), range, acc[t],
               [&](size_t group, const float* part) { store(call, group, tile(t), part); });
  }
}

void multiply_fp16_tiles(const MatmulCall& call, const Tiles& tiles, GroupRange range) {
  alignas(kAlignment) float acc[kPanelRows * kMostTiles * kTileRows];
  clear(call, tiles, range, acc);
  const size_t k_blocks = call.shape.k_blocks();
  const bool one_group = range.last - range.first == 1;
  const size_t panel_blocks = one_group ? k_blocks : kFp16PanelBlocks;
  const size_t next = one_group ? (tiles.count - 1) * tiles.bytes(call) : 0;
  for (size_t block = 0; block < k_blocks; block += panel_blocks) {
    const size_t k_count = std::min(panel_blocks * kBlock, call.shape.k - block * kBlock);
    const uint8_t* weights = call.row_tile(tiles.first) + block * kFp16TileBytes;
    for_groups(call, tiles, range, acc, [&](size_t group, float* part) {
      call.kernels.fp16.multiply[call.groups.rows(group)](weights, tiles.bytes(call), next, k_count,
                                                          call.copied(group, block), part);
    });
  }
  for_groups(call, tiles, range, acc, [&](size_t group, const float* part) { store(call, group, tiles, part); });
}

}  // namespace

void multiply_tiles(const MatmulCall& call, size_t first, size_t last) {
  const size_t count = call.tiles_at_once(), groups_at_once = call.groups_at_once();
  for (size_t group = 0; group < call.groups.count; group += groups_at_once) {
    const GroupRange range{group, std::min(call.groups.count, group + groups_at_once)};
    for (size_t tile = first; tile < last;) {
      Tiles tiles{tile, count, last - tile >= count ? count : 1};
      if (!call.kind.mx()) {
        multiply_fp16_tiles(call, tiles, range);
      } else if (call.decodes_in_registers()) {
        multiply_packed_tiles(call, tiles, range);
      } else {
        tiles.kept = std::min(call.mx.decoded_tiles, last - tile);
        multiply_decoded_tiles(call, tile, tiles.kept, range);
      }
      tile += tiles.kept;
    }
  }
  overwrite_special_rows(call, first, last);
}

}  // namespace mxspec
