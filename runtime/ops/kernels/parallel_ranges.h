// How the work of a call is divided over the threads.
#pragma once

#include <algorithm>

#include "runtime/ops/kernels/parallel_for.h"

namespace mxspec {

// A task is worth handing to another thread from about this time on.
inline constexpr double kTaskSeconds = 10e-6;

// How `count` units are cut into tasks. Each thread first takes one large task of most of its share (each start of a
// task waits for memory; one a thread is 8 % faster than four equal ones), then small ones, which let the threads end
// together where one of them was held up.
class Cut {
 public:
  static constexpr size_t kTasksPerThread = 2;

  Cut(double seconds, size_t count, size_t threads) : count_(count), threads_(std::min(threads, count)) {
    const double wanted = std::min(seconds / kTaskSeconds, static_cast<double>(threads * kTasksPerThread));
    tasks_ = threads < 2 ? 1 : std::clamp<size_t>(static_cast<size_t>(wanted), 1, count);
  }
  size_t tasks() const { return tasks_; }
  // First unit of a task; that of the one after the last is the count.
  size_t first(size_t task) const {
    if (tasks_ <= threads_) return count_ * task / tasks_;
    const size_t large = count_ * 7 / 8;
    if (task <= threads_) return large * task / threads_;
    return large + (count_ - large) * (task - threads_) / (tasks_ - threads_);
  }

 private:
  size_t count_, threads_, tasks_;
};

// body(first, last) for parts of [0, count), which are cut at multiples of `unit`; seconds: about how long all takes.
template <class Body>
void parallel_ranges(const ParallelFor& parallel, size_t count, size_t unit, double seconds, const Body& body) {
  const Cut cut(seconds, (count + unit - 1) / unit, parallel.threads);
  if (cut.tasks() == 1) return body(size_t{0}, count);
  parallel(cut.tasks(),
           [&](size_t task) { body(cut.first(task) * unit, std::min(count, cut.first(task + 1) * unit)); });
}

}  // namespace mxspec
