// One pool of threads for all sessions of the process.
//
// The target's and the draft's sessions take turns on the same cores. With a pool each, the threads of the one that
// waits spin on the cores of the one that works; without spinning, every operator pays for waking its threads. So the
// operators share this pool, and ONNX Runtime's own is set to one thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/ops/kernels/parallel_for.h"

namespace mxspec {

class ThreadPool {
 public:
  // A pool of `threads` in all, the caller of run() being one of them; of fewer where the system gives no more.
  explicit ThreadPool(size_t threads) { start(threads); }
  ~ThreadPool() { stop(); }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // The pool of this process: as many threads as it may use cores, until resize().
  static ThreadPool& shared();

  size_t threads() const { return threads_.load(std::memory_order_relaxed); }
  // Waits for the running job, then starts or ends threads. Where the system does not give all, returns false, with
  // as many threads as before, or as many as it still gives.
  bool resize(size_t threads);

  // Calls body(user, index) once for each index < count, on all threads, in any order, and returns when all are done.
  // A second caller at the same time does its own work alone. The body must not call run(); throws what a body threw.
  void run(size_t count, void (*body)(void* user, size_t index), void* user);

  // Says which bytes the job after the next one will read, each thread about an equal part in their order. Threads
  // that wait for it fetch the first of their part into their caches, so that memory does not idle meanwhile. The
  // bytes may be gone by then.
  void expect(const void* bytes, size_t count);

 private:
  // A job is one word, so that claiming an index and knowing which job it is of is one atomic step:
  //   bits 0..19 the next index, bits 20..39 the number of indices, bits 40..63 the job's number.
  // A claimed index keeps its job alive, since run() returns only when all its indices are done.
  static constexpr uint64_t kBits = 20;
  static constexpr uint64_t kMask = (uint64_t{1} << kBits) - 1;
  static uint64_t next_of(uint64_t word) { return word & kMask; }
  static uint64_t count_of(uint64_t word) { return word >> kBits & kMask; }

  class Fetching;

  void work(size_t number);
  void drain();
  void keep(std::exception_ptr error);
  bool start(size_t threads);
  void stop();

  alignas(64) std::atomic<uint64_t> job_{0};
  alignas(64) std::atomic<size_t> done_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<const uint8_t*> expected_{nullptr};
  std::atomic<size_t> expected_bytes_{0};
  void (*body_)(void*, size_t) = nullptr;
  void* user_ = nullptr;
  std::mutex errors_;
  std::exception_ptr error_;  // the first of the job's
  std::mutex callers_;
  std::vector<std::thread> workers_;  // guarded by callers_
  std::atomic<size_t> threads_{1};    // read while another caller resizes
};

// The shared pool, as the kernels take it.
ParallelFor shared_threads();

}  // namespace mxspec
