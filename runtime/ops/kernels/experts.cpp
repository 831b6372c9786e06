#include "runtime/ops/kernels/experts.h"

#include "runtime/ops/kernels/lanes/lane_kernels.h"

namespace mxspec {
namespace {

constexpr size_t kAlignment = 64;
// What one core about does, to tell small work from large; nothing else depends on them.
constexpr double kGatesPerSecond = 1.6e9, kWeightedPerSecond = 4e9;

// Where each part of the scratch memory begins, in bytes after an aligned start.
struct ScratchPlan {
  size_t gate_up, inner, down;                    // a row for each place: float[places][2 * inner], [inner], [n]
  std::vector<size_t> gate_up_calls, down_calls;  // what the matmul wants for each group
  size_t bytes = 0;

  ScratchPlan(const ExpertsShape& shape, const ExpertsKind& kind, const Routing& routing) {
    const size_t floats = routing.rows.size() * sizeof(float);
    gate_up = take(floats * 2 * shape.inner);
    inner = take(floats * shape.inner);
    down = take(floats * shape.n);
    for (const Routing::Group& group : routing.groups) {
      gate_up_calls.push_back(take(matmul_scratch_bytes(shape.gate_up(group.count), kind.gate_up)));
      down_calls.push_back(take(matmul_scratch_bytes(shape.down(group.count), kind.down)));
    }
  }

  size_t take(size_t of_part) {
    const size_t first = bytes;
    bytes += (of_part + kAlignment - 1) / kAlignment * kAlignment;
    return first;
  }
};

uint8_t* aligned(void* memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  return static_cast<uint8_t*>(memory) + (kAlignment - address % kAlignment) % kAlignment;
}

// Separates gates and ups float[2 * inner] that alternate: the gates to `gates`, the ups to the front of `values`.
void separate(float* values, size_t inner, float* gates) {
  for (size_t i = 0; i < inner; ++i) {
    gates[i] = values[2 * i];
    values[i] = values[2 * i + 1];
  }
}

const float* of_expert(const float* bias, size_t expert, size_t count) {
  return bias == nullptr ? nullptr : bias + expert * count;
}

}  // namespace

Routing::Routing(const int64_t* chosen, const ExpertsShape& shape) {
  const size_t pairs = shape.rows * shape.top_k;
  std::vector<size_t> next(shape.experts);  // the next place of each expert
  for (size_t pair = 0; pair < pairs; ++pair) ++next[static_cast<size_t>(chosen[pair])];
  size_t first = 0;
  for (size_t expert = 0; expert < shape.experts; ++expert) {
    const size_t count = next[expert];
    if (count != 0) groups.push_back({expert, first, count});
    next[expert] = first;
    first += count;
  }
  rows.resize(pairs);
  places.resize(pairs);
  for (size_t pair = 0; pair < pairs; ++pair) {
    places[pair] = next[static_cast<size_t>(chosen[pair])]++;
    rows[places[pair]] = pair / shape.top_k;
  }
}

ExpertsCall::ExpertsCall(const ExpertsShape& shape, const ExpertsKind& kind, const ExpertsOperands& operands,
                         const Routing& routing, Isa isa, const std::function<void*(size_t bytes)>& scratch)
    : shape_(shape), kind_(kind), operands_(operands), routing_(routing), isa_(isa) {
  const ScratchPlan plan(shape, kind, routing);
  uint8_t* const memory = aligned(scratch(plan.bytes + kAlignment));
  gate_up_values_ = reinterpret_cast<float*>(memory + plan.gate_up);
  inner_values_ = reinterpret_cast<float*>(memory + plan.inner);
  down_values_ = reinterpret_cast<float*>(memory + plan.down);
  const MatmulKernels& kernels = matmul_kernels(isa);
  const auto bytes_of = [](const MatmulShape& matrix, const MatmulKind& kind) {
    return matrix.row_tiles() * matrix.row_tile_bytes(kind.format);
  };
  const size_t gate_up_bytes = bytes_of(shape.gate_up(0), kind.gate_up),
               down_bytes = bytes_of(shape.down(0), kind.down);
  gate_up_.reserve(routing.groups.size());
  down_.reserve(routing.groups.size());
  for (size_t i = 0; i < routing.groups.size(); ++i) {
    const auto [expert, first, count] = routing.groups[i];
    const MatmulOperands gate_up{operands.x, operands.gate_up + expert * gate_up_bytes,
                                 of_expert(operands.gate_up_bias, expert, 2 * shape.inner),
                                 gate_up_values_ + first * 2 * shape.inner, routing.rows.data() + first};
    const MatmulOperands down{inner_values_ + first * shape.inner, operands.down + expert * down_bytes,
                              of_expert(operands.down_bias, expert, shape.n), down_values_ + first * shape.n};
    gate_up_.emplace_back(shape.gate_up(count), kind.gate_up, gate_up, kernels).place(memory + plan.gate_up_calls[i]);
    down_.emplace_back(shape.down(count), kind.down, down, kernels).place(memory + plan.down_calls[i]);
  }
}

void ExpertsCall::gate_up(const ParallelFor& parallel) const {
  prepare_all(gate_up_, parallel, 0, [](const MatmulCall&, size_t) {});
  multiply_all(gate_up_, parallel);
}

void ExpertsCall::down(const ParallelFor& parallel) const {
  const GateFunction gate = gate_function(kind_.activation, isa_);
  const WeightedSum weighted_sum = lane_kernels(isa_).weighted_sum;
  const size_t inner = shape_.inner, top_k = shape_.top_k, n = shape_.n, pairs = shape_.rows * top_k;
  const auto through_gate = [&](const MatmulCall& call, size_t group) {
    const size_t first = static_cast<size_t>(call.row(call.groups.first(group)) - inner_values_) / inner;
    for (size_t place = first; place < first + call.groups.rows(group); ++place) {
      float *const values = gate_up_values_ + place * 2 * inner, *const result = inner_values_ + place * inner;
      if (kind_.alternating) {
        separate(values, inner, result);
        gate(result, values, inner, kind_.constants, result);
      } else {
        gate(values, values + inner, inner, kind_.constants, result);
      }
    }
  };
  prepare_all(down_, parallel, static_cast<double>(pairs * inner) / kGatesPerSecond, through_gate);
  multiply_all(down_, parallel);
  const double seconds = static_cast<double>(pairs * n) / kWeightedPerSecond;
  parallel_ranges(parallel, shape_.rows, 1, seconds, [&](size_t first, size_t last) {
    for (size_t row = first; row < last; ++row) {
      const size_t* const places = routing_.places.data() + row * top_k;
      weighted_sum({down_values_, places, operands_.weights + row * top_k, top_k, n}, operands_.out + row * n);
    }
  });
}

}  // namespace mxspec
