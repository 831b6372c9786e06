#include "runtime/ops/kernels/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mxspec {
namespace {

// Time that an idle thread looks for work before it sleeps: longer than the time between two operators and between two
// calls of a round, far shorter than anything a person notices.
constexpr auto kSpin = std::chrono::microseconds(200);
constexpr int kLooksPerClock = 64;  // reading the clock costs more than looking

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

size_t usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return static_cast<size_t>(std::max(CPU_COUNT(&set), 1));
  return std::max(std::thread::hardware_concurrency(), 1u);
}

}  // namespace

ThreadPool& ThreadPool::shared() {
  static ThreadPool pool(usable_cores());
  return pool;
}

ParallelFor shared_threads() {
  const auto run = [](void* pool, size_t count, void (*body)(void*, size_t), void* user) {
    static_cast<ThreadPool*>(pool)->run(count, body, user);
  };
  ThreadPool& pool = ThreadPool::shared();
  return {run, &pool, pool.threads()};
}

bool ThreadPool::resize(size_t threads) {
  const std::lock_guard lock(callers_);
  const size_t before = this->threads();
  if (threads == before) return true;
  stop();
  if (start(threads)) return true;
  stop();  // those that it gave: the rest of the process needs some, too
  start(before);
  return false;
}

// Of no workers; returns whether the system gave that many.
bool ThreadPool::start(size_t threads) {
  stopping_ = false;
  try {
    while (workers_.size() + 1 < threads) workers_.emplace_back([this] { work(); });
  } catch (const std::exception&) {  // no more threads, or no more memory
  }
  threads_ = workers_.size() + 1;
  return workers_.size() + 1 >= threads;
}

void ThreadPool::stop() {
  stopping_ = true;
  job_.fetch_add(uint64_t{1} << (2 * kBits));  // another number, no indices: wakes the sleepers
  job_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

void ThreadPool::run(size_t count, void (*body)(void*, size_t), void* user) {
  std::unique_lock lock(callers_, std::defer_lock);
  if (count <= 1 || count >= kMask / 2 || !lock.try_lock() || workers_.empty()) {
    for (size_t i = 0; i < count; ++i) body(user, i);
    return;
  }
  body_ = body;
  user_ = user;
  done_.store(0, std::memory_order_relaxed);
  const uint64_t number = (job_.load(std::memory_order_relaxed) >> (2 * kBits)) + 1;
  job_.store(number << (2 * kBits) | count << kBits, std::memory_order_seq_cst);
  job_.notify_all();  // a system call only where somebody sleeps
  drain();
  while (done_.load(std::memory_order_acquire) != count) pause();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::keep(std::exception_ptr error) {
  const std::lock_guard lock(errors_);
  if (!error_) error_ = std::move(error);
}

// Claims and does indices of the present job until none is left.
void ThreadPool::drain() {
  uint64_t word = job_.load(std::memory_order_acquire);
  while (next_of(word) < count_of(word)) {
    word = job_.fetch_add(1, std::memory_order_acq_rel);
    if (next_of(word) >= count_of(word)) return;
    try {
      body_(user_, next_of(word));
    } catch (const std::exception&) {  // memory for its scratch, say: a thread that ended by it would end the process
      keep(std::current_exception());
    }
    done_.fetch_add(1, std::memory_order_release);
    word = job_.load(std::memory_order_acquire);
  }
}

void ThreadPool::work() {
  while (!stopping_) {
    const auto give_up = std::chrono::steady_clock::now() + kSpin;
    uint64_t word = job_.load(std::memory_order_acquire);
    for (int look = 1; next_of(word) >= count_of(word) && !stopping_; ++look) {
      if (look % kLooksPerClock == 0 && std::chrono::steady_clock::now() > give_up) {
        job_.wait(word);
        break;
      }
      pause();
      word = job_.load(std::memory_order_acquire);
    }
    drain();
  }
}

}  // namespace mxspec
