// What the process's calls of PackedExperts have touched so far.
#pragma once

#include <atomic>
#include <cstdint>

namespace mxspec {

struct ExpertsCounts {
  std::atomic<uint64_t> calls{0}, rows{0}, experts{0};  // experts: the distinct ones of each call

  static ExpertsCounts& of_process() {
    static ExpertsCounts counts;
    return counts;
  }
  void add(uint64_t rows_of_call, uint64_t experts_of_call) {
    calls.fetch_add(1, std::memory_order_relaxed);
    rows.fetch_add(rows_of_call, std::memory_order_relaxed);
    experts.fetch_add(experts_of_call, std::memory_order_relaxed);
  }
};

}  // namespace mxspec
