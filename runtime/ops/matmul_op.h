#pragma once

#include "runtime/ops/kernels/matmul/matmul.h"
#include "runtime/ops/next_matrix.h"
#include "runtime/ops/op.h"
#include "runtime/ops/packed_matrix.h"

namespace mxspec {

// PackedMatMul(A float32[..., K], B uint8[n_tiles, row_tile_bytes], bias float32[N]?) -> float32[..., N]:
// A times the transpose of the packed matrix B of N rows and K columns.
// Attributes K, N: int; format: a name of formats::kWeightFormats; activations: "int16" (the default) or, for weights
// whose values fit a byte, "int8": what MX weights are multiplied with.
class PackedMatMulOp {
 public:
  static constexpr const char* kName = "PackedMatMul";
  static constexpr Parameter kInputs[] = {
      {"A", ElementType::kFloat32}, {"B", ElementType::kUint8}, {"bias", ElementType::kFloat32, true}};
  static constexpr Parameter kOutputs[] = {{"output", ElementType::kFloat32}};

  explicit PackedMatMulOp(const Attributes& attributes);
  void compute(Context& context) const;

 private:
  PackedMatrix matrix_;
  MatmulKind kind_;
  Isa isa_;
  NextMatrix next_;
};

}  // namespace mxspec
