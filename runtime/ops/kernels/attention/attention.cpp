#include "runtime/ops/kernels/attention/attention.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "runtime/ops/kernels/buffer.h"
#include "runtime/ops/kernels/lanes/lane_kernels.h"

namespace mxspec {
namespace {

// Tiles are tasks where the busiest thread then has at most this many eighths of its share. Else the spans of each tile
// become tasks of their own, so that few heads, or one long sequence among short ones, still fill the threads.
constexpr size_t kEvenEighths = 9;
// Below this many multiply-adds (some 5 us) waking another thread costs more than it saves.
constexpr size_t kSerialWork = 1 << 16;
constexpr size_t kSerialStores = 16;  // writing fewer tokens to the cache is not worth another thread either

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// The tiles of a call, and the layout of their states.
class Plan {
 public:
  explicit Plan(const AttentionCall& call)
      : call_(call),
        group_(call.heads / call.kv_heads),
        positions_per_tile_(std::max<size_t>(1, kSharingRows / group_)),
        padded_(round_up(call.head_size, 16)) {
    for (size_t s = 0; s < call.sequence_count; ++s) {
      const AttentionSequence& sequence = call.sequences[s];
      most_positions_ = std::max(most_positions_, std::min(positions_per_tile_, sequence.count));
      for (size_t first = 0; first < sequence.count; first += positions_per_tile_) {
        for (size_t kv_head = 0; kv_head < call.kv_heads; ++kv_head) {
          add_tile(sequence, kv_head, first, std::min(positions_per_tile_, sequence.count - first));
        }
      }
    }
    // Rows of the row table are laid out tile by tile; the pointers are set when it no longer grows.
    const AttentionRow* row = rows_.data();
    for (Tile& tile : tiles_) {
      tile.view.rows = row;
      row += tile.view.row_count;
    }
    std::stable_sort(tiles_.begin(), tiles_.end(), [](const Tile& a, const Tile& b) { return a.work > b.work; });
    for (const Tile& tile : tiles_) work_ += tile.work;
  }

  struct Tile {
    AttentionTile view;
    size_t first_span, last_span;
    size_t work;  // multiply-adds, about
  };
  const std::vector<Tile>& tiles() const { return tiles_; }  // those with the most work first
  size_t work() const { return work_; }

  // Whether threads that each take the next tile end at about the same time.
  bool is_even(size_t threads) const {
    std::vector<size_t> busy(threads);
    for (const Tile& tile : tiles_) *std::min_element(busy.begin(), busy.end()) += tile.work;
    return *std::max_element(busy.begin(), busy.end()) * threads * 8 <= work_ * kEvenEighths;
  }

  size_t state_floats() const { return most_rows() * (2 + padded_); }
  size_t scratch_floats() const { return kSpanKeys * call_.head_size + most_rows() * (kSpanKeys + 4); }
  size_t queries_floats() const { return most_rows() * query_floats(call_.kind, call_.head_size); }
  AttentionState state_in(float* memory) const { return {memory, memory + most_rows(), memory + 2 * most_rows()}; }
  AttentionScratch scratch_in(float* memory, float* queries) const {
    float* const scores = memory + kSpanKeys * call_.head_size;
    float* const rows = scores + most_rows() * kSpanKeys;
    const auto numbers = [&](size_t i) { return rows + i * most_rows(); };
    return {memory, scores, numbers(0), numbers(1), numbers(2), numbers(3), queries};
  }

 private:
  // Of a tile, padded so that the numbers of sixteen rows can be loaded at once.
  size_t most_rows() const { return round_up(most_positions_ * group_, 16); }

  struct Seen {
    size_t first, end;
  };
  Seen seen_by(const AttentionSequence& sequence, size_t position) const {
    switch (call_.mode) {
      case AttentionMode::kCausal:
        return {call_.window != 0 && position >= call_.window ? position - call_.window + 1 : 0, position + 1};
      case AttentionMode::kOwn:
        return {0, sequence.count};
      case AttentionMode::kStored:
        return {0, sequence.past};
    }
    __builtin_unreachable();
  }

  void add_tile(const AttentionSequence& sequence, size_t kv_head, size_t first, size_t count) {
    for (size_t i = first; i < first + count; ++i) {
      const size_t position = sequence.past + i;
      const Seen seen = seen_by(sequence, position);
      for (size_t head = kv_head * group_; head < (kv_head + 1) * group_; ++head) {
        const size_t offset = ((sequence.first + i) * call_.heads + head) * call_.head_size;
        const float slope = call_.slopes == nullptr ? 0 : call_.slopes[head];
        const float sink = call_.sinks == nullptr ? 0 : call_.sinks[head];
        const float* const bias =
            call_.distance_bias == nullptr ? nullptr : call_.distance_bias + head * call_.distances;
        rows_.push_back(
            {call_.query + offset, call_.output + offset, position, seen.first, seen.end, bias, slope, sink});
      }
    }
    const AttentionRow& lowest = rows_[rows_.size() - count * group_];
    const AttentionRow& highest = rows_.back();
    const size_t keys = highest.end_key - lowest.first_key;
    tiles_.push_back({{first_entry(call_, sequence, kv_head), count * group_, nullptr},
                      lowest.first_key / kSpanKeys,
                      (highest.end_key + kSpanKeys - 1) / kSpanKeys,
                      2 * count * group_ * keys * call_.head_size});
  }

  const AttentionCall& call_;
  const size_t group_;
  const size_t positions_per_tile_;
  const size_t padded_;
  size_t most_positions_ = 0;  // of a tile
  size_t work_ = 0;
  std::vector<AttentionRow> rows_;
  std::vector<Tile> tiles_;
};

// Task = (tile): all its spans in order.
void attend_tile(const AttentionCall& call, const AttentionKernels& kernels, const Plan& plan, const Plan::Tile& tile) {
  thread_local Buffer buffer;
  float* const memory = buffer.floats(plan.scratch_floats() + plan.queries_floats() + plan.state_floats());
  float* const queries = memory + plan.scratch_floats();
  const AttentionState state = plan.state_in(queries + plan.queries_floats());
  kernels.prepare(call, tile.view, queries);
  kernels.attend(call, tile.view, tile.first_span, tile.last_span, state, plan.scratch_in(memory, queries));
  kernels.finish(call, tile.view, state);
}

// Tasks = (tile, span), each into a state of its own; who ends last in a tile merges these in order.
class SplitTiles {
 public:
  SplitTiles(const AttentionCall& call, const AttentionKernels& kernels, const Plan& plan, Buffer& buffer)
      : call_(call), kernels_(kernels), plan_(plan), left_(plan.tiles().size()) {
    for (size_t i = 0; i < plan.tiles().size(); ++i) {
      const Plan::Tile& tile = plan.tiles()[i];
      left_[i].store(tile.last_span - tile.first_span, std::memory_order_relaxed);
      first_task_.push_back(tasks_.size());
      for (size_t span = tile.first_span; span < tile.last_span; ++span) tasks_.push_back({i, span});
    }
    state_stride_ = plan.state_floats();
    states_ = buffer.floats(tasks_.size() * state_stride_ + plan.tiles().size() * plan.queries_floats());
    for (size_t i = 0; i < plan.tiles().size(); ++i) kernels.prepare(call, plan.tiles()[i].view, queries_of(i));
  }

  size_t count() const { return tasks_.size(); }

  void run(size_t task) {
    const auto [index, span] = tasks_[task];
    const AttentionTile& tile = plan_.tiles()[index].view;
    thread_local Buffer buffer;
    const AttentionScratch scratch = plan_.scratch_in(buffer.floats(plan_.scratch_floats()), queries_of(index));
    kernels_.attend(call_, tile, span, span + 1, state_of(task), scratch);
    if (left_[index].fetch_sub(1, std::memory_order_acq_rel) == 1) merge(index, scratch);
  }

 private:
  struct Task {
    size_t tile, span;
  };

  float* queries_of(size_t tile) const {
    return states_ + tasks_.size() * state_stride_ + tile * plan_.queries_floats();
  }
  AttentionState state_of(size_t task) const { return plan_.state_in(states_ + task * state_stride_); }

  // The first span's state takes in the others. Rows of a window that do not see the first span replace it later.
  void merge(size_t index, AttentionScratch scratch) {
    const Plan::Tile& tile = plan_.tiles()[index];
    const AttentionState state = state_of(first_task_[index]);
    for (size_t span = tile.first_span + 1; span < tile.last_span; ++span) {
      kernels_.merge(call_, tile.view, span, state_of(first_task_[index] + span - tile.first_span), state, scratch);
    }
    kernels_.finish(call_, tile.view, state);
  }

  const AttentionCall& call_;
  const AttentionKernels& kernels_;
  const Plan& plan_;
  std::vector<std::atomic<size_t>> left_;  // spans of each tile that are not done
  std::vector<size_t> first_task_;
  std::vector<Task> tasks_;
  size_t state_stride_ = 0;
  float* states_ = nullptr;
};

// Writes the call's keys and values. run(count, body) runs the tasks of many tokens.
template <class Run>
void store(const AttentionCall& call, const AttentionKernels& kernels, const Run& run) {
  size_t tokens = 0;
  for (size_t s = 0; s < call.sequence_count; ++s) tokens += call.sequences[s].count;
  const auto store = [&](size_t i) { kernels.store(call, call.sequences[i / call.kv_heads], i % call.kv_heads); };
  const size_t stores = call.sequence_count * call.kv_heads;
  if (tokens > kSerialStores) {
    run(stores, store);
  } else {
    for (size_t i = 0; i < stores; ++i) store(i);
  }
}

}  // namespace

void store_keys_and_values(const AttentionCall& call, Isa isa, const ParallelFor& parallel) {
  store(call, lane_kernels(isa).attention, parallel);
}

void attention(const AttentionCall& call, Isa isa, const ParallelFor& parallel) {
  const AttentionKernels& kernels = lane_kernels(isa).attention;
  const Plan plan(call);
  const auto run = [&](size_t total, const auto& body) {
    if (plan.work() >= kSerialWork && total > 1) {
      parallel(total, body);
    } else {
      for (size_t i = 0; i < total; ++i) body(i);
    }
  };

  if (call.mode != AttentionMode::kStored) store(call, kernels, run);
  if (plan.work() < kSerialWork || plan.is_even(parallel.threads)) {
    run(plan.tiles().size(), [&](size_t i) { attend_tile(call, kernels, plan, plan.tiles()[i]); });
  } else {
    thread_local Buffer states;
    SplitTiles split(call, kernels, plan, states);
    run(split.count(), [&](size_t i) { split.run(i); });
  }
}

}  // namespace mxspec
