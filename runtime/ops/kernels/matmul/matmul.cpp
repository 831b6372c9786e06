#include "runtime/ops/kernels/matmul/matmul.h"

#include "runtime/ops/kernels/matmul/matmul_call.h"

namespace mxspec {
namespace {

constexpr size_t kAlignment = 64;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Offsets of the parts of the scratch memory, and its size.
struct ScratchPlan {
  size_t scales, starts, row_kinds, bytes;

  // For the widest values that a kind may be given: which ones they are is the instruction set's choice.
  ScratchPlan(const MatmulShape& shape, const MatmulKind& kind) {
    const size_t blocks = shape.m * shape.k_blocks();
    scales = aligned(blocks * kBlock * (kind.mx() ? sizeof(int16_t) : sizeof(float)));
    starts = scales + (kind.mx() ? aligned(blocks * sizeof(float)) : 0);
    row_kinds = starts + (kind.activations == Activations::kInt8 ? aligned(blocks * kMostStarts * sizeof(int32_t)) : 0);
    bytes = row_kinds + shape.m * sizeof(RowKind);
  }
};

bool has_byte_kernels(const MatmulKernels& kernels, const MatmulKind& kind, int bits) {
  return kind.activations == Activations::kInt8 && kernels.int8.of(bits).most_rows != 0;
}

// About how long one core needs for all row tiles: it only tells small work from large.
double seconds_to_multiply(const MatmulCall& call) {
  constexpr double kBytesPerSecond = 20e9, kMultipliesPerSecond = 200e9;
  const MatmulShape& shape = call.shape;
  return static_cast<double>(shape.row_tiles() * call.row_tile_bytes()) / kBytesPerSecond +
         static_cast<double>(shape.n) * static_cast<double>(shape.m * shape.k_blocks() * kBlock) / kMultipliesPerSecond;
}

size_t rows_of_group(size_t m, size_t most_rows, size_t group_rows) { return m <= most_rows ? m : group_rows; }

}  // namespace

MatmulCall::MatmulCall(const MatmulShape& shape, const MatmulKind& kind, const MatmulOperands& operands,
                       const MatmulKernels& kernels)
    : shape(shape),
      kind(kind),
      operands(operands),
      kernels(kernels),
      element(weight_element(kind.format)),
      bytes(has_byte_kernels(kernels, kind, element.bits)),
      mx((bytes ? kernels.int8 : kernels.int16).of(element.bits)),
      groups(shape.m, kind.mx() ? rows_of_group(shape.m, mx.most_rows, mx.group_rows)
                                : rows_of_group(shape.m, kernels.fp16.most_rows, kernels.fp16.group_rows)) {}

size_t matmul_scratch_bytes(const MatmulShape& shape, const MatmulKind& kind) {
  return kAlignment + ScratchPlan(shape, kind).bytes;
}

void matmul(const MatmulShape& shape, const MatmulKind& kind, const MatmulOperands& operands, Isa isa, void* scratch,
            const ParallelFor& parallel) {
  multiply(shape, kind, operands, matmul_kernels(isa), scratch, parallel);
}

void MatmulCall::place(void* scratch) {
  const ScratchPlan plan(shape, kind);
  auto* memory = static_cast<uint8_t*>(scratch);
  memory += (kAlignment - reinterpret_cast<uintptr_t>(memory) % kAlignment) % kAlignment;
  values = memory;
  scales = reinterpret_cast<float*>(memory + plan.scales);
  starts = reinterpret_cast<int32_t*>(memory + plan.starts);
  row_kinds = reinterpret_cast<RowKind*>(memory + plan.row_kinds);
}

void multiply(const MatmulShape& shape, const MatmulKind& kind, const MatmulOperands& operands,
              const MatmulKernels& kernels, void* scratch, const ParallelFor& parallel) {
  if (shape.m == 0 || shape.n == 0) return;
  MatmulCall call(shape, kind, operands, kernels);
  call.place(scratch);
  const std::span<const MatmulCall> calls(&call, 1);
  prepare_all(calls, parallel, 0, [](const MatmulCall&, size_t) {});
  multiply_all(calls, parallel);
}

void multiply_all(std::span<const MatmulCall> calls, const ParallelFor& parallel) {
  // Row tiles that a kernel takes at once stay together.
  const auto units_of = [](const MatmulCall& call) {
    const size_t tiles = call.tiles_at_once();
    return (call.shape.row_tiles() + tiles - 1) / tiles;
  };
  size_t units = 0;
  double seconds = 0;
  for (const MatmulCall& call : calls) {
    units += units_of(call);
    seconds += seconds_to_multiply(call);
  }
  parallel_ranges(parallel, units, 1, seconds, [&](size_t first, size_t last) {
    for_units(calls, first, last, units_of, [](const MatmulCall& call, size_t begin, size_t end) {
      const size_t tiles = call.tiles_at_once();
      multiply_tiles(call, begin * tiles, std::min(call.shape.row_tiles(), end * tiles));
    });
  });
}

}  // namespace mxspec
