// How the work of a call is divided over the threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>

#include "runtime/ops/kernels/parallel_for.h"

namespace mxspec {

// A thread is worth starting for about this much time of one; starting it takes half a microsecond.
inline constexpr double kShareSeconds = 3e-6;
inline constexpr size_t kMostShares = 256;

// What nobody has taken yet of a thread's share of the units. The thread takes from the front, others from the back.
class alignas(64) Share {
 public:
  struct Units {
    uint32_t first, last;
    bool empty() const { return first == last; }
  };

  Share(size_t first, size_t last) : left_(first | uint64_t{last} << 32) {}
  // Half of what is left, or all of it where that is not more than `least`.
  Units take(uint32_t least, bool front) {
    uint64_t left = left_.load(std::memory_order_relaxed);
    for (;;) {
      const auto first = static_cast<uint32_t>(left), last = static_cast<uint32_t>(left >> 32);
      const uint32_t half = (last - first) / 2, count = half < least ? std::min(least, last - first) : half;
      const Units taken = front ? Units{first, first + count} : Units{last - count, last};
      if (taken.empty()) return taken;
      const uint64_t rest = front ? taken.last | uint64_t{last} << 32 : first | uint64_t{taken.first} << 32;
      if (left_.compare_exchange_weak(left, rest, std::memory_order_relaxed)) return taken;
    }
  }

 private:
  std::atomic<uint64_t> left_;  // the first unit, and above it the one after the last
};

// body(first, last) for parts of [0, count), which are cut at multiples of `unit`; seconds: about how long all takes on
// one thread. Each thread has a share of neighbouring units, which it takes in pieces of falling size; a thread that is
// done takes from the others' shares, so that all end together where one of them was held up.
template <class Body>
void parallel_ranges(const ParallelFor& parallel, size_t count, size_t unit, double seconds, const Body& body) {
  const size_t units = (count + unit - 1) / unit;
  const double worth = std::min(seconds / kShareSeconds, static_cast<double>(std::min(parallel.threads, units)));
  const size_t shares = std::min(static_cast<size_t>(std::max(worth, 1.0)), kMostShares);
  if (shares == 1) return body(size_t{0}, count);
  const double units_a_share = static_cast<double>(units) / seconds * kShareSeconds / 2;
  const auto least = static_cast<uint32_t>(std::clamp(units_a_share, 1.0, static_cast<double>(units)));
  alignas(Share) unsigned char memory[kMostShares * sizeof(Share)];  // only what is used of it is touched
  Share* const of_threads = reinterpret_cast<Share*>(memory);
  for (size_t i = 0; i < shares; ++i) new (of_threads + i) Share(units * i / shares, units * (i + 1) / shares);
  parallel(shares, [&](size_t thread) {
    for (size_t i = 0; i < shares; ++i) {
      Share& share = of_threads[(thread + i) % shares];
      for (Share::Units part; !(part = share.take(least, i == 0)).empty();) {
        body(part.first * unit, std::min(count, part.last * unit));
      }
    }
  });
}

}  // namespace mxspec
