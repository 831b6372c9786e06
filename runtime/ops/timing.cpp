// The kernels and the memory alone, without ONNX Runtime: what runtime/ops/timing.py calls.
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "runtime/ops/c_border.h"
#include "runtime/ops/kernels/attention.h"
#include "runtime/ops/kernels/matmul.h"
#include "runtime/ops/kernels/thread_pool.h"

namespace mxspec {
namespace {

template <class Body>
double seconds_of(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Adds up 64-bit words: the plain loop that the speed of memory is judged by. It fetches ahead, and its four sums are
// plain variables: GCC 12 keeps an array of them in memory, which halves the speed.
uint64_t sum_words(const uint8_t* bytes, size_t count) {
  constexpr size_t kBytesAhead = 2048;
  uint64_t a = 0, b = 0, c = 0, d = 0, words[8];
  for (size_t i = 0; i + sizeof(words) <= count; i += sizeof(words)) {
    __builtin_prefetch(bytes + i + kBytesAhead);  // of bytes beyond the end it does nothing
    std::memcpy(words, bytes + i, sizeof(words));
    a += words[0] + words[4];
    b += words[1] + words[5];
    c += words[2] + words[6];
    d += words[3] + words[7];
  }
  return a + b + c + d;
}

}  // namespace
}  // namespace mxspec

#define MXSPEC_EXPORT extern "C" __attribute__((visibility("default")))

// Of mxspec_time_matmul and mxspec_time_attention.
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

// Seconds of each of `repetitions` calls of attention of `rows` new tokens of each of `sequences` sequences, after
// `cached` tokens each. `layers` pairs of caches uint16[sequences, kv_heads, capacity, head_size], of float16 values,
// in `caches` alternate, as in a model.
MXSPEC_EXPORT int mxspec_time_attention(const char* isa, size_t heads, size_t kv_heads, size_t head_size,
                                        size_t sequences, size_t rows, size_t cached, size_t capacity, uint16_t* caches,
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
    const size_t cache_values = sequences * kv_heads * capacity * head_size;
    for (size_t i = 0; i < repetitions; ++i) {
      uint16_t* keys = caches + i % layers * 2 * cache_values;
      const AttentionCall call = {
          .sequences = parts.data(),
          .sequence_count = parts.size(),
          .heads = heads,
          .kv_heads = kv_heads,
          .head_size = head_size,
          .capacity = capacity,
          .query = query.data(),
          .key = fresh.data(),
          .value = fresh.data(),
          .key_cache = keys,
          .value_cache = keys + cache_values,
          .half_cache = true,
          .slopes = nullptr,
          .sinks = nullptr,
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

// Seconds of each of `repetitions` reads of all the bytes by the shared threads. Returns their sum, lest the compiler
// leave the loop out.
MXSPEC_EXPORT uint64_t mxspec_time_read(const uint8_t* bytes, size_t count, size_t repetitions, double* seconds) {
  using namespace mxspec;
  return no_throw<uint64_t>(0, [&] {
    constexpr size_t kChunk = size_t{1} << 20;
    std::vector<uint64_t> sums(count / kChunk + 1);
    for (size_t i = 0; i < repetitions; ++i) {
      seconds[i] = seconds_of([&] {
        shared_threads()((count + kChunk - 1) / kChunk, [&](size_t chunk) {
          const size_t first = chunk * kChunk;
          sums[chunk] += sum_words(bytes + first, count - first < kChunk ? count - first : kChunk);
        });
      });
    }
    return std::accumulate(sums.begin(), sums.end(), uint64_t{0});
  });
}
