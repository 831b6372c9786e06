#pragma once

#include <string>

#include "runtime/ops/kernels/matmul/matmul.h"
#include "runtime/ops/op.h"

namespace mxspec {

// The attribute `name`: a number of rows or columns.
int64_t size_attribute(const Attributes& attributes, const char* name);
// A name of formats::kWeightFormats.
WeightFormat format_attribute(const Attributes& attributes, const char* name);
// "int16" (the default) or, for weights whose values fit a byte, "int8": what MX weights are multiplied with.
MatmulKind kind_attribute(const Attributes& attributes, WeightFormat format, const char* name);

// Throws where the input `name` does not have the shape of the row tiles of a packed matrix of n rows; `sizes` says of
// which attributes it follows.
void check_packed(const char* name, const Tensor& packed, WeightFormat format, int64_t n, int64_t k,
                  const std::string& sizes);

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
