#pragma once

#include "runtime/ops/kernels/matmul.h"
#include "runtime/ops/op.h"

namespace mxspec {

// PackedMatMul(A float32[..., K], B uint8[n_tiles, row_tile_bytes], bias float32[N]?) -> float32[..., N]:
// A times the transpose of the packed matrix B of N rows and K columns.
// Attributes K, N: int; format: "fp16_tiles", "mxfp6_e3m2" or "mxfp6_e2m3".
class PackedMatMulOp {
 public:
  static constexpr const char* kName = "PackedMatMul";
  static constexpr Parameter kInputs[] = {
      {"A", ElementType::kFloat32}, {"B", ElementType::kUint8}, {"bias", ElementType::kFloat32, true}};
  static constexpr Parameter kOutputs[] = {{"output", ElementType::kFloat32}};

  explicit PackedMatMulOp(const Attributes& attributes);
  void compute(Context& context) const;

 private:
  int64_t k_, n_;
  WeightFormat format_;
  Isa isa_;
};

}  // namespace mxspec
