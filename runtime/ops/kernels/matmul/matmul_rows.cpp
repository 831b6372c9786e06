// The rows of a call: their preparation, and those that the fast kernels cannot have.
#include <cmath>
#include <limits>

#include "runtime/ops/kernels/isa_kernels.h"
#include "runtime/ops/kernels/matmul/matmul_call.h"

namespace mxspec {

double seconds_to_prepare(const MatmulCall& call) {
  constexpr double kValuesPerSecond = 4e9;  // about, of one core; it only tells small work from large
  return static_cast<double>(call.shape.m * call.shape.k_blocks() * kBlock) / kValuesPerSecond;
}

void prepare_rows(const MatmulCall& call, size_t group) {
  const size_t rows = call.groups.rows(group), k = call.shape.k;
  const bool int8 = call.kind.activations == Activations::kInt8;
  const QuantisationRule rule{int8, call.element.unit_exponent, call.element.offset, call.mx.starts};
  for (size_t r = 0; r < rows; ++r) {
    const size_t row = call.groups.first(group) + r, before = call.blocks_before(group, 0) + r;
    const float* a = call.row(row);
    uint8_t* const values = call.values + before * kBlock * call.value_size();
    if (!call.kind.mx()) {
      call.row_kinds[row] = copy_row(a, k, rows, reinterpret_cast<float*>(values));
      continue;
    }
    const RowSlot slot{values, call.scales + before, call.starts + before * starts_of_block(call.mx.starts), rows};
    call.row_kinds[row] = (call.bytes ? call.kernels.quantise.bytes : call.kernels.quantise.words)(a, k, rule, slot);
  }
}

namespace {

// A row tile of an extreme row, in float64 where float32 has not the range; the same code for all instruction sets.
void multiply_extreme_row(const MatmulCall& call, size_t row, size_t tile, float* acc) {
  const size_t k = call.shape.k;
  const int bits = call.element.bits;
  for (size_t block = 0; block < call.shape.k_blocks(); ++block) {
    int16_t q[kBlock], weights[kTileRows * kBlock];
    const double unit = quantise_extreme_block(call.row(row) + block * kBlock, std::min(kBlock, k - block * kBlock),
                                               call.kind.activations == Activations::kInt8, q);
    float scales[kTileRows];
    kInt16Scalar.of(bits).decode(call.row_tile(tile) + block * call.tile_code_bytes(),
                                 call.weight_scales(tile) + block * kTileRows, 1, call.element, {weights, scales});
    for (size_t i = 0; i < kTileRows; ++i) {
      int32_t sum = 0;
      for (size_t j = 0; j < kBlock; ++j) sum += weights[j / 2 * 32 + i * 2 + j % 2] * q[j];
      const double product = std::ldexp(static_cast<double>(sum) * unit * scales[i], -call.element.unit_exponent);
      acc[i] = static_cast<float>(static_cast<double>(acc[i]) + product);
    }
  }
}

}  // namespace

void overwrite_special_rows(const MatmulCall& call, size_t first, size_t last) {
  const size_t n = call.shape.n;
  for (size_t row = 0; row < call.shape.m; ++row) {
    if (call.row_kinds[row] == RowKind::kOrdinary) continue;
    for (size_t tile = first; tile < last; ++tile) {
      float acc[kTileRows] = {};
      if (call.row_kinds[row] == RowKind::kExtreme) {
        multiply_extreme_row(call, row, tile, acc);
      } else {
        std::fill_n(acc, kTileRows, std::numeric_limits<float>::quiet_NaN());
      }
      for (size_t column = tile * kTileRows; column < std::min(n, (tile + 1) * kTileRows); ++column) {
        const float sum = acc[column % kTileRows];
        call.operands.out[row * n + column] = call.operands.bias == nullptr ? sum : sum + call.operands.bias[column];
      }
    }
  }
}

}  // namespace mxspec
