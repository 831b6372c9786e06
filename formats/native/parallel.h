// A loop over row tiles on a few threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

namespace mxspec::formats {

// The codec's arithmetic needs subnormals and round to nearest; a host program may have switched either (torch can).
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t saved_;
};

// Calls body(tile) once for each tile below `tiles`. Threads take `grain` tiles at a time, so that one that is held up
// holds up nobody. Throws std::bad_alloc; a thread that cannot be started is done without.
template <typename Body>
void for_each_tile(int64_t tiles, int64_t grain, int threads, const Body& body) {
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    const DefaultFloatEnvironment environment;
    for (int64_t begin; (begin = next.fetch_add(grain, std::memory_order_relaxed)) < tiles;)
      for (int64_t tile = begin; tile < begin + grain && tile < tiles; ++tile) body(tile);
  };
  const int64_t helpers = std::min<int64_t>(threads, (tiles + grain - 1) / grain) - 1;
  std::vector<std::jthread> team;
  if (helpers > 0) team.reserve(static_cast<size_t>(helpers));
  try {
    for (int64_t helper = 0; helper < helpers; ++helper) team.emplace_back(work);
  } catch (const std::system_error&) {
  }
  work();
}

}  // namespace mxspec::formats
