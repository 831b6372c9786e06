#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

#include "runtime/ops/kernels/parallel_ranges.h"
#include "runtime/ops/kernels/thread_pool.h"
#include "tests/native/check.h"
#include "tests/native/pool_of.h"

namespace {

using mxspec::ThreadPool;
using mxspec::test::pool_of;

struct Counts {
  explicit Counts(size_t size) : values(size) {}
  static void add(void* self, size_t index) { ++static_cast<Counts*>(self)->values[index]; }
  std::vector<int> values;  // plain: two threads on one index would be a data race
};

void every_index_is_done_once(ThreadPool& pool) {
  for (size_t count : {0, 1, 2, 3, 7, 64, 1000}) {
    for (int repetition = 0; repetition < 300; ++repetition) {
      Counts counts(count);
      pool.run(count, Counts::add, &counts);
      for (size_t i = 0; i < count; ++i) CHECK(counts.values[i] == 1) << "index" << i << "of" << count;
    }
  }
}

void sleepers_wake(ThreadPool& pool) {
  for (int repetition = 0; repetition < 20; ++repetition) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // longer than a thread looks for work
    Counts counts(100);
    pool.run(100, Counts::add, &counts);
    for (int value : counts.values) CHECK(value == 1);
  }
}

void two_callers_do_not_mix(ThreadPool& pool) {
  auto call = [&pool] {
    for (int repetition = 0; repetition < 2000; ++repetition) {
      Counts counts(17);
      pool.run(17, Counts::add, &counts);
      for (int value : counts.values) CHECK(value == 1);
    }
  };
  std::thread other(call);
  call();
  other.join();
}

void an_exception_comes_up_when_all_is_done(ThreadPool& pool) {
  for (size_t thrower : {0, 5, 99}) {
    Counts counts(100);
    const auto body = [&](size_t i) {
      Counts::add(&counts, i);
      if (i == thrower) throw std::bad_alloc();
    };
    bool caught = false;
    try {
      pool_of(pool)(100, body);
    } catch (const std::bad_alloc&) {
      caught = true;
    }
    CHECK(caught);
    if (pool.threads() > 1) {
      for (int value : counts.values) CHECK(value == 1);
    }
    every_index_is_done_once(pool);
  }
}

// As engines do: one asks for its number of threads, another reads it, and works.
void the_number_of_threads_is_read_while_it_changes(ThreadPool& pool) {
  std::thread other([&pool] {
    for (int repetition = 0; repetition < 50; ++repetition) CHECK(pool.resize(1 + repetition % 4));
  });
  for (int repetition = 0; repetition < 2000; ++repetition) {
    const size_t threads = pool.threads();
    CHECK(threads >= 1 && threads <= 4) << threads;
    Counts counts(7);
    pool.run(7, Counts::add, &counts);
    for (int value : counts.values) CHECK(value == 1);
  }
  other.join();
}

void every_unit_is_in_one_part(ThreadPool& pool) {
  for (size_t count : {1, 2, 15, 16, 17, 48, 1000}) {
    for (size_t unit : {1, 4, 16}) {
      for (double seconds : {0.0, 1e-6, 7e-6, 1e-3}) {
        Counts counts(count);
        mxspec::parallel_ranges(pool_of(pool), count, unit, seconds, [&](size_t first, size_t last) {
          CHECK(first < last && last <= count && first % unit == 0 && (last % unit == 0 || last == count));
          for (size_t i = first; i < last; ++i) Counts::add(&counts, i);
        });
        for (size_t i = 0; i < count; ++i) CHECK(counts.values[i] == 1) << "index" << i << "of" << count;
      }
    }
  }
}

// The thread that has the first unit is held up until all of the units that it has not begun are done.
void what_a_thread_has_not_begun_is_done_by_others(ThreadPool& pool) {
  constexpr size_t kUnits = 64;
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::atomic<size_t> done{0};
  mxspec::parallel_ranges(pool_of(pool), kUnits, 1, 1.0, [&](size_t first, size_t last) {
    if (first == 0) {
      while (done < kUnits - last && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
      CHECK(done == kUnits - last) << done.load();
    }
    done += last - first;
  });
  CHECK(done == kUnits);
}

// Bytes are only fetched: they may be none, or gone.
void what_is_expected_need_not_come(ThreadPool& pool) {
  std::vector<uint8_t> bytes(3 << 20);
  for (const auto& [begin, count] : {std::pair<const void*, size_t>{bytes.data(), bytes.size()},
                                     {nullptr, 0},
                                     {reinterpret_cast<const void*>(uintptr_t{4096}), 1 << 20}}) {
    pool.expect(begin, count);
    every_index_is_done_once(pool);
  }
  pool.expect(nullptr, 0);
}

}  // namespace

int main() {
  for (size_t threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    CHECK(pool.threads() == threads);
    every_index_is_done_once(pool);
    sleepers_wake(pool);
    two_callers_do_not_mix(pool);
    an_exception_comes_up_when_all_is_done(pool);
    every_unit_is_in_one_part(pool);
    if (threads > 1) what_a_thread_has_not_begun_is_done_by_others(pool);
    what_is_expected_need_not_come(pool);
    the_number_of_threads_is_read_while_it_changes(pool);
    CHECK(pool.resize(3));
    CHECK(pool.threads() == 3);
    every_index_is_done_once(pool);
  }
  return mxspec::test::check_result();
}
