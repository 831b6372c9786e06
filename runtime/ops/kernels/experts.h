// The feed-forward of a mixture of experts (Shazeer et al., "Outrageously Large Neural Networks"): each row goes
// through the experts that were chosen for it, and what they give is added up.
//
// For each row t, in float32:
//   acc = 0; for each rank r in its order: acc = fmaf(weights[t, r], d, acc), with e = chosen[t, r], d = h * down_e^T +
//   down bias_e, h = gate(x_t * gate_up_e^T + gate_up bias_e)
// where the products are those of matmul.h, the gate one of gated.h, and the sum weighted_sum.h's. So a row's bits are
// the same for every instruction set, number of threads and company. A row that holds NaN or infinity, or whose h does,
// gives a row of NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/ops/kernels/gated.h"
#include "runtime/ops/kernels/matmul/matmul_call.h"

namespace mxspec {

struct ExpertsShape {
  size_t rows, top_k;
  size_t experts, k, inner, n;  // 2 * inner and n are multiples of 16, so that row tiles belong to one expert

  // The products of m rows with one expert.
  MatmulShape gate_up(size_t m) const { return {m, 2 * inner, k}; }
  MatmulShape down(size_t m) const { return {m, n, inner}; }
};

struct ExpertsKind {
  MatmulKind gate_up, down;
  GateActivation activation;
  GateConstants constants;
  bool alternating = false;  // each row of the gate is followed by one of up
};

// Which places each expert gets: the pairs of a row and a rank, those of the first chosen expert first.
struct Routing {
  struct Group {
    size_t expert, first, count;  // the places [first, first + count)
  };

  std::vector<Group> groups;   // of the experts that were chosen
  std::vector<size_t> rows;    // of each place
  std::vector<size_t> places;  // [rows, top_k], of each pair

  // chosen: int64[rows, top_k], each within 0 and experts - 1.
  Routing(const int64_t* chosen, const ExpertsShape& shape);
};

struct ExpertsOperands {
  const float* x;             // float[rows, k]
  const float* weights;       // float[rows, top_k]
  const uint8_t* gate_up;     // the row tiles of each expert in turn; a matrix is its inner rows of gate, then of up
  const uint8_t* down;        // the row tiles of each expert in turn
  const float* gate_up_bias;  // float[experts, 2 * inner], or nullptr
  const float* down_bias;     // float[experts, n], or nullptr
  float* out;                 // float[rows, n]
};

// One call. Of the packed matrices it reads the tiles of chosen experts only, each once (but for many rows of one
// expert), those of all experts in one parallel region.
class ExpertsCall {
 public:
  // `isa` must be available on this machine, and the kinds possible. `scratch` gives memory of so many bytes, at any
  // alignment, which the call uses until it is done.
  ExpertsCall(const ExpertsShape& shape, const ExpertsKind& kind, const ExpertsOperands& operands,
              const Routing& routing, Isa isa, const std::function<void*(size_t bytes)>& scratch);

  // The two halves, one after the other.
  void gate_up(const ParallelFor& parallel) const;
  void down(const ParallelFor& parallel) const;

 private:
  const ExpertsShape shape_;
  const ExpertsKind kind_;
  const ExpertsOperands operands_;
  const Routing& routing_;
  const Isa isa_;
  float *gate_up_values_, *inner_values_, *down_values_;  // a row for each place
  std::vector<MatmulCall> gate_up_, down_;                // a call for each group
};

}  // namespace mxspec
