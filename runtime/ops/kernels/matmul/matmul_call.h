// One call of the product, as its parts share it: what is multiplied, by which kernels, and where its rows lie.
#pragma once

#include <algorithm>

#include "runtime/ops/kernels/matmul/matmul_kernels.h"

namespace mxspec {

inline constexpr size_t kPanelRows = 192;         // most activation rows that share the weights of some row tiles
inline constexpr size_t kPanelBytes = 384 << 10;  // and most bytes of them, to stay in the second-level cache

struct MatmulCall {
  const MatmulShape shape;
  const MatmulKind kind;
  const MatmulOperands& operands;
  const MatmulKernels& kernels;
  // MX only
  const WeightElement& element;
  const bool bytes;  // the rows' integers are bytes, else int16
  const MxKernels& mx;
  const RowGroups groups;
  // Scratch, set by place()
  uint8_t* values = nullptr;     // int8, int16 or float
  float* scales = nullptr;       // MX
  int32_t* starts = nullptr;     // bytes
  RowKind* row_kinds = nullptr;  // [m]

  MatmulCall(const MatmulShape& shape, const MatmulKind& kind, const MatmulOperands& operands,
             const MatmulKernels& kernels);

  size_t value_size() const { return !kind.mx() ? sizeof(float) : bytes ? sizeof(int8_t) : sizeof(int16_t); }
  size_t row_tile_bytes() const { return shape.row_tile_bytes(kind.format); }
  size_t tile_code_bytes() const { return static_cast<size_t>(kind.facts().tile_code_bytes()); }
  bool decodes_in_registers() const {
    return mx.decode == nullptr || (groups.count == 1 && mx.multiply_packed[groups.rows(0)] != nullptr);
  }
  // Row tiles that one call of a kernel takes.
  size_t tiles_at_once() const {
    if (!kind.mx()) return kernels.fp16.tiles[groups.rows(0)];
    return decodes_in_registers() ? mx.tiles[groups.rows(0)] : 1;
  }
  // Groups that share the weights of some row tiles.
  size_t groups_at_once() const {
    const size_t panel_rows = kPanelBytes / (shape.k_blocks() * kBlock * value_size());
    return std::max<size_t>(1, std::min(panel_rows, kPanelRows) / groups.rows(0));
  }
  // Blocks of all rows before this one of the group.
  size_t blocks_before(size_t group, size_t block) const {
    return groups.first(group) * shape.k_blocks() + block * groups.rows(group);
  }
  QuantisedGroup quantised(size_t group, size_t block) const {
    const size_t before = blocks_before(group, block);
    return {values + before * kBlock * value_size(), scales + before, starts + before * starts_of_block(mx.starts)};
  }
  const float* copied(size_t group, size_t block) const {
    return reinterpret_cast<const float*>(values) + blocks_before(group, block) * kBlock;
  }
  const uint8_t* row_tile(size_t tile) const { return operands.packed + tile * row_tile_bytes(); }
  const uint8_t* weight_scales(size_t tile) const { return row_tile(tile) + shape.k_blocks() * tile_code_bytes(); }
};

// matmul() with a given table.
void multiply(const MatmulShape& shape, const MatmulKind& kind, const MatmulOperands& operands,
              const MatmulKernels& kernels, void* scratch, const ParallelFor& parallel);

// Quantises or copies the rows of a group.
void prepare_rows(const MatmulCall& call, size_t group);

// The prepared rows times the row tiles [first, last).
void multiply_tiles(const MatmulCall& call, size_t first, size_t last);

// Writes again the outputs of the row tiles [first, last) in the rows that are not ordinary.
void overwrite_special_rows(const MatmulCall& call, size_t first, size_t last);

}  // namespace mxspec
