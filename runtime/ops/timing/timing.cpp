// The kernels and the memory alone, without ONNX Runtime: what mxspec.runtime.ops.timing calls.
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/ops/c_border.h"
#include "runtime/ops/kernels/attention/attention.h"
#include "runtime/ops/kernels/buffer.h"
#include "runtime/ops/kernels/experts.h"
#include "runtime/ops/kernels/matmul/matmul.h"
#include "runtime/ops/kernels/parallel_ranges.h"
#include "runtime/ops/kernels/thread_pool.h"
#include "runtime/ops/timing/read_loops.h"

namespace mxspec {
namespace {

template <class Body>
double seconds_of(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace
}  // namespace mxspec

#define MXSPEC_EXPORT extern "C" __attribute__((visibility("default")))

// The status that mxspec_time_matmul, mxspec_time_experts and mxspec_time_attention return.
enum : int { kTimed = 0, kUnknownIsa = 1, kIsaNotHere = 2, kNoMemory = 3 };

// Seconds of each of `repetitions` products of a float[m, k] with one of `matrices` packed matrices, which lie one
// after the other and alternate (together larger than the caches, they are read from memory). format: a
// number of formats::kWeightFormats; activations: 0 int16, 1 int8.
MXSPEC_EXPORT int mxspec_time_matmul(const char* isa, int format, int activations, size_t m, size_t n, size_t k,
                                     const float* a, const uint8_t* packed, size_t matrices, float* out,
                                     size_t repetitions, double* seconds) {
  using namespace mxspec;
  return no_throw<int>(kNoMemory, [&]() -> int {
    const IsaChoice choice = choose_isa(isa);
    if (!choice.error.empty()) return isa_name(choice.isa) == std::string_view(isa) ? kIsaNotHere : kUnknownIsa;
    const MatmulKind kind{static_cast<WeightFormat>(format), static_cast<Activations>(activations)};
    const MatmulShape shape{m, n, k};
    const size_t matrix_bytes = shape.row_tiles() * shape.row_tile_bytes(kind.format);
    const std::unique_ptr<uint8_t[]> scratch(new uint8_t[matmul_scratch_bytes(shape, kind)]);
    for (size_t i = 0; i < repetitions; ++i) {
      const MatmulOperands operands{a, packed + i % matrices * matrix_bytes, nullptr, out};
      seconds[i] = seconds_of([&] { matmul(shape, kind, operands, choice.isa, scratch.get(), shared_threads()); });
    }
    return kTimed;
  });
}

// Seconds of each of `repetitions` calls of experts with the same rows x float[rows, k], and chosen experts
// int64[repetitions, rows, top_k], whose weights are all 1 / top_k. sizes: rows, top_k, experts, k, inner, n. kinds: of
// the matrices gate_up and down, each its format and activations as mxspec_time_matmul takes them; the activation is a
// number of GateActivation.
MXSPEC_EXPORT int mxspec_time_experts(const char* isa, const size_t* sizes, const int* kinds, int activation,
                                      const float* x, const int64_t* chosen, const uint8_t* gate_up,
                                      const uint8_t* down, float* out, size_t repetitions, double* seconds) {
  using namespace mxspec;
  return no_throw<int>(kNoMemory, [&]() -> int {
    const IsaChoice choice = choose_isa(isa);
    if (!choice.error.empty()) return isa_name(choice.isa) == std::string_view(isa) ? kIsaNotHere : kUnknownIsa;
    const ExpertsShape shape{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]};
    const auto kind_of = [](const int* kind) {
      return MatmulKind{static_cast<WeightFormat>(kind[0]), static_cast<Activations>(kind[1])};
    };
    const ExpertsKind kind{kind_of(kinds), kind_of(kinds + 2), static_cast<GateActivation>(activation), {}};
    const std::vector<float> weights(shape.rows * shape.top_k, 1 / static_cast<float>(shape.top_k));
    const ExpertsOperands operands{x, weights.data(), gate_up, down, nullptr, nullptr, out};
    Buffer memory;
    for (size_t i = 0; i < repetitions; ++i) {
      seconds[i] = seconds_of([&] {
        const Routing routing(chosen + i * shape.rows * shape.top_k, shape);
        const ExpertsCall call(shape, kind, operands, routing, choice.isa,
                               [&](size_t bytes) { return memory.bytes(bytes); });
        call.gate_up(shared_threads());
        call.down(shared_threads());
      });
    }
    return kTimed;
  });
}

// Seconds of each of `repetitions` calls of attention of `rows` new tokens of each of `sequences` sequences, after
// `cached` tokens each. `layers` pairs of caches [sequences, kv_heads, capacity] of entries of a kind (CacheKind) in
// `caches` alternate, as in a model.
MXSPEC_EXPORT int mxspec_time_attention(const char* isa, int kind, size_t heads, size_t kv_heads, size_t head_size,
                                        size_t sequences, size_t rows, size_t cached, size_t capacity, uint8_t* caches,
                                        size_t layers, size_t repetitions, double* seconds) {
  using namespace mxspec;
  return no_throw<int>(kNoMemory, [&]() -> int {
    const IsaChoice choice = choose_isa(isa);
    if (!choice.error.empty()) return isa_name(choice.isa) == std::string_view(isa) ? kIsaNotHere : kUnknownIsa;
    const size_t tokens = sequences * rows;
    const std::vector<float> query(tokens * heads * head_size, 0.1f), fresh(tokens * kv_heads * head_size, 0.1f);
    std::vector<float> output(query.size());
    std::vector<AttentionSequence> parts;
    for (size_t s = 0; s < sequences; ++s) parts.push_back({s, cached, s * rows, rows});
    const CacheKind of_caches = static_cast<CacheKind>(kind);
    const size_t cache_bytes = sequences * kv_heads * capacity * entry_bytes(of_caches, head_size);
    for (size_t i = 0; i < repetitions; ++i) {
      uint8_t* keys = caches + i % layers * 2 * cache_bytes;
      const AttentionCall call = {
          .mode = AttentionMode::kCausal,
          .sequences = parts.data(),
          .sequence_count = parts.size(),
          .heads = heads,
          .kv_heads = kv_heads,
          .head_size = head_size,
          .capacity = capacity,
          .query = query.data(),
          .key = fresh.data(),
          .value = fresh.data(),
          .kind = of_caches,
          .key_cache = keys,
          .value_cache = keys + cache_bytes,
          .slopes = nullptr,
          .sinks = nullptr,
          .distance_bias = nullptr,
          .distances = 0,
          .first_distance = 0,
          .output = output.data(),
          .scale = 1 / std::sqrt(static_cast<float>(head_size)),
          .softcap = 0,
          .window = 0,
      };
      seconds[i] = seconds_of([&] { attention(call, choice.isa, shared_threads()); });
    }
    return kTimed;
  });
}

// Seconds of each of `repetitions` empty jobs, one index for each thread. Before each, the caller works alone for
// `pause` seconds; the others wait, asleep if that is long.
MXSPEC_EXPORT void mxspec_time_region(double pause, size_t repetitions, double* seconds) {
  using namespace mxspec;
  const ParallelFor threads = shared_threads();
  const auto now = [] { return std::chrono::steady_clock::now(); };
  for (size_t i = 0; i < repetitions; ++i) {
    for (const auto end = now() + std::chrono::duration<double>(pause); now() < end;) {
    }
    seconds[i] = seconds_of([&] { threads(threads.threads, [](size_t) {}); });
  }
}

// The names of the loops that mxspec_time_read takes by number, with a semicolon between two.
MXSPEC_EXPORT const char* mxspec_read_loops() {
  using namespace mxspec;
  return no_throw<const char*>("", [] {
    static const std::string names = [] {
      std::string text;
      for (const ReadKind& kind : kReadKinds) text.append(text.empty() ? "" : ";").append(kind.name);
      return text;
    }();
    return names.c_str();
  });
}

// Seconds of each of `repetitions` reads of all the bytes by the shared threads, which divide them as a product does
// its matrix. Returns the sum of the words of all reads.
MXSPEC_EXPORT uint64_t mxspec_time_read(size_t loop, const uint8_t* bytes, size_t count, size_t repetitions,
                                        double* seconds) {
  using namespace mxspec;
  return no_throw<uint64_t>(0, [&] {
    constexpr double kBytesPerSecond = 20e9;  // about, of one core
    constexpr size_t kPageBytes = 4096;
    const ReadLoop read = read_loops().loops[loop];
    std::atomic<uint64_t> sum = 0;
    for (size_t i = 0; i < repetitions; ++i) {
      seconds[i] = seconds_of([&] {
        parallel_ranges(shared_threads(), count, kPageBytes, static_cast<double>(count) / kBytesPerSecond,
                        [&](size_t first, size_t last) { sum += read(bytes + first, last - first); });
      });
    }
    return sum.load();
  });
}
