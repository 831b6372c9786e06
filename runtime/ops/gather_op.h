#pragma once

#include "runtime/ops/op.h"
#include "runtime/ops/packed_matrix.h"

namespace mxspec {

// PackedGather(ids int64[...], B uint8[n_tiles, row_tile_bytes]) -> float32[..., K]: rows of the packed matrix B of N
// rows and K columns, by their numbers, 0 to N - 1. Attributes K, N, format as of PackedMatMul.
// For a model whose head is its embedding: one table then serves product and lookup.
class PackedGatherOp {
 public:
  static constexpr const char* kName = "PackedGather";
  static constexpr Parameter kInputs[] = {{"ids", ElementType::kInt64}, {"B", ElementType::kUint8}};
  static constexpr Parameter kOutputs[] = {{"output", ElementType::kFloat32}};

  explicit PackedGatherOp(const Attributes& attributes) : matrix_(attributes) {}
  void compute(Context& context) const;

 private:
  PackedMatrix matrix_;
};

}  // namespace mxspec
