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
constexpr int kLooksPerClock = 64;          // reading the clock costs more than looking
constexpr size_t kFetchBytes = 1024;        // between two looks
constexpr size_t kMostFetched = 512 << 10;  // by a thread for one job: half of a small second-level cache
constexpr size_t kLineBytes = 64;

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

// What a waiting thread does between two looks: it fetches its part of the expected bytes, some of them at a time.
class ThreadPool::Fetching {
 public:
  Fetching(const ThreadPool& pool, size_t number) {
    const size_t count = pool.expected_bytes_.load(std::memory_order_relaxed), threads = pool.threads();
    next_ = pool.expected_.load(std::memory_order_relaxed) + count * number / threads;
    left_ = std::min(count / threads, kMostFetched);
  }
  void wait() {
    if (left_ == 0) return pause();
    const size_t count = std::min(left_, kFetchBytes);
    for (size_t i = 0; i < count; i += kLineBytes) __builtin_prefetch(next_ + i, 0, 2);
    next_ += count;
    left_ -= count;
  }

 private:
  const uint8_t* next_;
  size_t left_;
};

void ThreadPool::expect(const void* bytes, size_t count) {
  expected_.store(static_cast<const uint8_t*>(bytes), std::memory_order_relaxed);
  expected_bytes_.store(count, std::memory_order_relaxed);
}

ParallelFor shared_threads() {
  const auto run = [](void* pool, size_t count, void (*body)(void*, size_t), void* user) {
    static_cast<ThreadPool*>(pool)->run(count, body, user);
  };
  const auto expect = [](void* pool, const void* bytes, size_t count) {
    static_cast<ThreadPool*>(pool)->expect(bytes, count);
  };
  ThreadPool& pool = ThreadPool::shared();
  return {run, &pool, pool.threads(), expect};
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
    while (workers_.size() + 1 < threads) workers_.emplace_back([this, number = workers_.size() + 1] { work(number); });
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
  for (Fetching fetching(*this, 0); done_.load(std::memory_order_acquire) != count;) fetching.wait();
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

void ThreadPool::work(size_t number) {
  while (!stopping_) {
    Fetching fetching(*this, number);
    const auto give_up = std::chrono::steady_clock::now() + kSpin;
    uint64_t word = job_.load(std::memory_order_acquire);
    for (int look = 1; next_of(word) >= count_of(word) && !stopping_; ++look) {
      if (look % kLooksPerClock == 0 && std::chrono::steady_clock::now() > give_up) {
        job_.wait(word);
        break;
      }
      fetching.wait();
      word = job_.load(std::memory_order_acquire);
    }
    drain();
  }
}

}  // namespace mxspec
