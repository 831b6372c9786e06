// Memory for one call of an operator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace mxspec {

// The calling thread's, kept from call to call; it grows to what the largest call wanted.
inline uint8_t* scratch(size_t bytes) {
  thread_local std::unique_ptr<uint8_t[]> memory;
  thread_local size_t size = 0;
  if (bytes > size) {
    memory.reset();  // before the larger one is taken
    size = 0;
    memory.reset(new uint8_t[bytes]);
    size = bytes;
  }
  return memory.get();
}

}  // namespace mxspec
