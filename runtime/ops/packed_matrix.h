#pragma once

#include "runtime/ops/kernels/matmul/matmul.h"
#include "runtime/ops/op.h"

namespace mxspec {

// A packed matrix of N rows and K columns, from the attributes K, N and format (a name of formats::kWeightFormats) of
// the operators that read one.
struct PackedMatrix {
  int64_t k, n;
  WeightFormat format;

  explicit PackedMatrix(const Attributes& attributes);

  // The arguments of a product with m rows.
  MatmulShape shape(int64_t m) const {
    return {static_cast<size_t>(m), static_cast<size_t>(n), static_cast<size_t>(k)};
  }
  size_t row_tile_bytes() const { return shape(0).row_tile_bytes(format); }
  // Throws where an input B does not have the shape of its tiles.
  void check(const Tensor& b) const;
};

}  // namespace mxspec
