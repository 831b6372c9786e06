#include "runtime/ops/gather_op.h"

#include "runtime/ops/checks.h"
#include "runtime/ops/kernels/matmul/packed_row.h"

namespace mxspec {
namespace {

// A task has about this many values (some 10 us), so that handing it to another thread costs less than doing it.
constexpr int64_t kValuesPerTask = 8192;

}  // namespace

void PackedGatherOp::compute(Context& context) const {
  const Tensor ids = context.input(0);
  const Tensor b = context.input(1);
  matrix_.check(b);
  const size_t rank = ids.shape.rank();
  if (rank == Shape::kMaxRank) throw_shape("ids", ids.shape, "at most 7 dimensions");
  Shape out_shape(rank + 1);
  for (size_t i = 0; i < rank; ++i) out_shape[i] = ids.shape[i];
  out_shape[rank] = matrix_.k;

  const auto* const id = ids.as<const int64_t>();
  const int64_t rows = ids.shape.size();
  for (int64_t i = 0; i < rows; ++i) {
    if (id[i] >= 0 && id[i] < matrix_.n) continue;
    throw OpError("ids: got " + std::to_string(id[i]) + ", expected 0 to " + std::to_string(matrix_.n - 1));
  }
  const Tensor out = context.output(0, ElementType::kFloat32, out_shape);
  const size_t row_tile_bytes = matrix_.row_tile_bytes(), k = static_cast<size_t>(matrix_.k);
  context.parallel_rows(rows, matrix_.k, kValuesPerTask, [&](int64_t i) {
    const auto row = static_cast<size_t>(id[i]);
    decode_row(matrix_.format, b.as<const uint8_t>() + row / kTileRows * row_tile_bytes, row % kTileRows, k,
               out.as<float>() + static_cast<size_t>(i) * k);
  });
}

}  // namespace mxspec
