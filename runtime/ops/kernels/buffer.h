#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace mxspec {

// Memory of one thread that is kept from call to call, grown where a call needs more. Begins with a line of the cache.
class Buffer {
 public:
  float* floats(size_t count) { return static_cast<float*>(bytes(count * sizeof(float))); }
  void* bytes(size_t count) {
    if (count > capacity_) {
      memory_.reset();  // before the larger one is taken
      capacity_ = 0;
      memory_.reset(::operator new(count, kAlignment));
      capacity_ = count;
    }
    return memory_.get();
  }

 private:
  static constexpr std::align_val_t kAlignment{64};

  struct Free {
    void operator()(void* memory) const { ::operator delete(memory, kAlignment); }
  };
  std::unique_ptr<void, Free> memory_;
  size_t capacity_ = 0;
};

}  // namespace mxspec
