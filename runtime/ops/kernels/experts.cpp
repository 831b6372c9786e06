#include "runtime/ops/kernels/experts.h"

#include "runtime/ops/kernels/lane_kernels.h"

namespace mxspec {
namespace {

constexpr size_t kAlignment = 64;
// What one core about does, to tell small work from large; nothing else depends on them.
constexpr double kGatesPerSecond = 1.6e9, kWeightedPerSecond = 4e9;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Cuts scratch memory into aligned parts; without memory it only counts their bytes.
class Parts {
 public:
  explicit Parts(void* memory) : memory_(static_cast<uint8_t*>(memory)) {
    if (memory_ != nullptr) memory_ += (kAlignment - reinterpret_cast<uintptr_t>(memory_) % kAlignment) % kAlignment;
  }

  size_t bytes() const { return kAlignment + bytes_; }
  uint8_t* take(size_t bytes) {
    uint8_t* const part = memory_ == nullptr ? nullptr : memory_ + bytes_;
    bytes_ += aligned(bytes);
    return part;
  }
  float* floats(size_t count) { return reinterpret_cast<float*>(take(count * sizeof(float))); }

 private:
  uint8_t* memory_;
  size_t bytes_ = 0;
};

// A row for each place; and what the matmul wants for each group.
struct Scratch {
  float *gate_up, *inner, *down;  // float[places][2 * inner], [inner], [n]
  std::vector<uint8_t*> gate_up_calls, down_calls;
  size_t bytes;

  Scratch(const ExpertsShape& shape, const ExpertsKind& kind, const Routing& routing, void* memory) {
    const size_t places = routing.rows.size();
    Parts parts(memory);
    gate_up = parts.floats(places * 2 * shape.inner);
    inner = parts.floats(places * shape.inner);
    down = parts.floats(places * shape.n);
    for (const Routing::Group& group : routing.groups) {
      gate_up_calls.push_back(parts.take(matmul_scratch_bytes(shape.gate_up(group.count), kind.gate_up)));
      down_calls.push_back(parts.take(matmul_scratch_bytes(shape.down(group.count), kind.down)));
    }
    bytes = parts.bytes();
  }
};

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

size_t experts_scratch_bytes(const ExpertsShape& shape, const ExpertsKind& kind, const Routing& routing) {
  return Scratch(shape, kind, routing, nullptr).bytes;
}

ExpertsCall::ExpertsCall(const ExpertsShape& shape, const ExpertsKind& kind, const ExpertsOperands& operands,
                         const Routing& routing, Isa isa, void* scratch)
    : shape_(shape), kind_(kind), operands_(operands), routing_(routing), isa_(isa) {
  const Scratch parts(shape, kind, routing, scratch);
  gate_up_values_ = parts.gate_up;
  inner_values_ = parts.inner;
  down_values_ = parts.down;
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
                                 parts.gate_up + first * 2 * shape.inner, routing.rows.data() + first};
    const MatmulOperands down{parts.inner + first * shape.inner, operands.down + expert * down_bytes,
                              of_expert(operands.down_bias, expert, shape.n), parts.down + first * shape.n};
    gate_up_.emplace_back(shape.gate_up(count), kind.gate_up, gate_up, kernels).place(parts.gate_up_calls[i]);
    down_.emplace_back(shape.down(count), kind.down, down, kernels).place(parts.down_calls[i]);
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
