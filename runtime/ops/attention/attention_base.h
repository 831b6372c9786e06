#pragma once

#include <vector>

#include "runtime/ops/kernels/attention/attention.h"
#include "runtime/ops/op.h"

namespace mxspec {

// What the operators of attention have in common; they differ in what a row sees (AttentionMode), and so in their
// inputs. Attributes: scale (required), softcap (0 = none), and where there is the input distance_bias, first_distance:
// to the score of a key, distance_bias[head, clamp(key's position - query's position - first_distance, 0, D - 1)] is
// added, after the cap (T5).
class AttentionBase {
 public:
  explicit AttentionBase(const Attributes& attributes);

 protected:
  // An input that an operator does not have is absent.
  struct Operands {
    AttentionMode mode;
    const std::vector<AttentionSequence>& sequences;
    Tensor query, past_key, past_value;
    std::optional<Tensor> key = {}, value = {};
    std::optional<Tensor> slopes = {}, sinks = {}, distance_bias = {};
    int64_t window = 0;
  };
  // Computes the output, which has the query's values in its order. All shapes have been checked.
  void attend(const Operands& operands, const Tensor& output) const;

 private:
  float scale_;
  float softcap_;
  int64_t first_distance_;
};

}  // namespace mxspec
