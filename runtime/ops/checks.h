// The checks that all operators share: shapes of inputs, and the instruction set.
#pragma once

#include <string>

#include "formats/native/isa.h"
#include "runtime/ops/tensor.h"

namespace mxspec {

[[noreturn]] inline void throw_shape(const std::string& name, const Shape& got, const std::string& expected) {
  throw OpError(name + ": got shape " + got.text() + ", expected " + expected);
}

// The instruction set of this process; throws where MXSPEC_ISA names one that is unknown or that the machine lacks.
inline Isa usable_isa() {
  const IsaChoice& choice = chosen_isa();
  if (!choice.error.empty()) throw OpError(choice.error);
  return choice.isa;
}

}  // namespace mxspec
