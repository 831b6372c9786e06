// One call of the product, as its parts share it: what is multiplied, by which kernels, and where its rows lie.
#pragma once

#include <algorithm>
#include <span>

#include "runtime/ops/kernels/matmul/matmul_kernels.h"
#include "runtime/ops/kernels/parallel_ranges.h"

namespace mxspec {

inline constexpr size_t kPanelRows = 192;         // most activation rows that share the weights of some row tiles
inline constexpr size_t kPanelBytes = 384 << 10;  // and most bytes of them, to stay in the second-level cache

struct MatmulCall {
  const MatmulShape shape;
  const MatmulKind kind;
  const MatmulOperands operands;
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
  // Takes matmul_scratch_bytes() of scratch memory.
  void place(void* scratch);

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
  const float* row(size_t i) const { return operands.a + (operands.rows == nullptr ? i : operands.rows[i]) * shape.k; }
  const uint8_t* row_tile(size_t tile) const { return operands.packed + tile * row_tile_bytes(); }
  const uint8_t* weight_scales(size_t tile) const { return row_tile(tile) + shape.k_blocks() * tile_code_bytes(); }
};

// matmul() with a given table.
void multiply(const MatmulShape& shape, const MatmulKind& kind, const MatmulOperands& operands,
              const MatmulKernels& kernels, void* scratch, const ParallelFor& parallel);

// Quantises or copies the rows of a group.
void prepare_rows(const MatmulCall& call, size_t group);
// About how long one core needs for all of them.
double seconds_to_prepare(const MatmulCall& call);

// The prepared rows times the row tiles [first, last).
void multiply_tiles(const MatmulCall& call, size_t first, size_t last);

// Writes again the outputs of the row tiles [first, last) in the rows that are not ordinary.
void overwrite_special_rows(const MatmulCall& call, size_t first, size_t last);

// The parts of several calls that are done together: each of them in so many units, which are counted on from call to
// call. body(call, first, last) for each call that has some of the units [first, last).
template <class Units, class Body>
void for_units(std::span<const MatmulCall> calls, size_t first, size_t last, const Units& units_of, const Body& body) {
  for (const MatmulCall& call : calls) {
    const size_t units = units_of(call);
    if (first < units) body(call, first, std::min(units, last));
    if (last <= units) return;
    first -= std::min(first, units);
    last -= units;
  }
}

// prepare_rows() of all groups of all calls, each after before(call, group), which needs `seconds` in all.
template <class Before>
void prepare_all(std::span<const MatmulCall> calls, const ParallelFor& parallel, double seconds, const Before& before) {
  size_t groups = 0;
  for (const MatmulCall& call : calls) {
    groups += call.groups.count;
    seconds += seconds_to_prepare(call);
  }
  parallel_ranges(parallel, groups, 1, seconds, [&](size_t first, size_t last) {
    const auto units = [](const MatmulCall& call) { return call.groups.count; };
    for_units(calls, first, last, units, [&](const MatmulCall& call, size_t group, size_t end) {
      for (; group < end; ++group) {
        before(call, group);
        prepare_rows(call, group);
      }
    });
  });
}

// multiply_tiles() of all row tiles of all calls.
void multiply_all(std::span<const MatmulCall> calls, const ParallelFor& parallel);

}  // namespace mxspec
