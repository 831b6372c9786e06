#pragma once

#include "runtime/ops/kernels/thread_pool.h"

namespace mxspec::test {

// A pool as the kernels take it.
inline ParallelFor pool_of(ThreadPool& pool) {
  const auto run = [](void* context, size_t count, void (*body)(void*, size_t), void* user) {
    static_cast<ThreadPool*>(context)->run(count, body, user);
  };
  return {run, &pool, pool.threads()};
}

}  // namespace mxspec::test
