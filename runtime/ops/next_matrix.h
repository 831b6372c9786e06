// Which matrix is read after which, as calls show it: a model's products come in the same order in every call.
#pragma once

#include <atomic>
#include <memory>

#include "runtime/ops/kernels/parallel_for.h"

namespace mxspec {

// Of one product: the matrix of the product that followed it on its thread when it last ran.
class NextMatrix {
 public:
  // A product begins to read these bytes; the threads get to know what the next one will read, if that is known.
  void begin(const ParallelFor& parallel, const void* bytes, size_t count) const {
    thread_local std::shared_ptr<Matrix> before;
    if (before != nullptr) {
      before->bytes.store(bytes, std::memory_order_relaxed);
      before->count.store(count, std::memory_order_relaxed);
    }
    before = next_;
    if (parallel.expect != nullptr) {
      parallel.expect(parallel.context, next_->bytes.load(std::memory_order_relaxed),
                      next_->count.load(std::memory_order_relaxed));
    }
  }

 private:
  struct Matrix {
    std::atomic<const void*> bytes{nullptr};
    std::atomic<size_t> count{0};
  };

  std::shared_ptr<Matrix> next_ = std::make_shared<Matrix>();
};

}  // namespace mxspec
