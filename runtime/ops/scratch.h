// Memory for one call of an operator.
#pragma once

#include <cstdint>

#include "runtime/ops/kernels/buffer.h"

namespace mxspec {

// The calling thread's memory, kept from call to call; it grows to the size of the largest call.
inline uint8_t* scratch(size_t bytes) {
  thread_local Buffer memory;
  return static_cast<uint8_t*>(memory.bytes(bytes));
}

}  // namespace mxspec
