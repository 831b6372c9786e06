// Compiled once for each instruction set with wide loads (CMakeLists.txt), and without MXSPEC_FOR for all machines.
#include "runtime/ops/timing/read_loops.h"

#include <cstring>
#include <utility>

#include "formats/native/isa.h"
#include "runtime/ops/kernels/compiler.h"

#if !defined(MXSPEC_FOR)
#define MXSPEC_FOR Scalar
#define MXSPEC_CHOOSES
#endif

namespace mxspec {
namespace {

constexpr size_t kLineBytes = 64;
constexpr size_t kStretchBytes = size_t{64} << 10;  // of each stream; the streams lie one after the other

template <size_t kBytes>
struct VectorOf {
  typedef uint64_t Type __attribute__((vector_size(kBytes)));
};

// kStreams stretches of memory; kStreams * stretch bytes in all.
template <size_t kVectorBytes, size_t kStreams, size_t kBytesAhead>
uint64_t read_streams(const uint8_t* bytes, size_t stretch) {
  using Vector = typename VectorOf<kVectorBytes>::Type;
  constexpr size_t kLoads = kLineBytes / kVectorBytes;
  constexpr size_t kSums = kLoads < 2 ? 1 : 2;  // of a stream: an addition waits for the one before
  Vector sums[kStreams][kSums] = {};
  for (size_t i = 0; i < stretch; i += kLineBytes) {
    MXSPEC_UNROLL for (size_t s = 0; s < kStreams; ++s) {
      const uint8_t* line = bytes + s * stretch + i;
      if (kBytesAhead != 0) __builtin_prefetch(line + kBytesAhead);  // of bytes beyond the end it does nothing
      MXSPEC_UNROLL for (size_t j = 0; j < kLoads; ++j) {
        Vector values;
        std::memcpy(&values, line + j * kVectorBytes, kVectorBytes);
        sums[s][j % kSums] += values;
      }
    }
  }
  uint64_t sum = 0;
  for (const auto& of_stream : sums) {
    for (const Vector& values : of_stream) {
      for (size_t i = 0; i < kVectorBytes / sizeof(uint64_t); ++i) sum += values[i];
    }
  }
  return sum;
}

template <size_t kVectorBytes, size_t kStreams, size_t kBytesAhead>
uint64_t read_all(const uint8_t* bytes, size_t count) {
  constexpr size_t kGroupBytes = kStreams * kStretchBytes;
  uint64_t sum = 0;
  for (; count >= kGroupBytes; bytes += kGroupBytes, count -= kGroupBytes) {
    sum += read_streams<kVectorBytes, kStreams, kBytesAhead>(bytes, kStretchBytes);
  }
  const size_t lines = count / kLineBytes * kLineBytes;
  sum += read_streams<kVectorBytes, 1, kBytesAhead>(bytes, lines);
  for (size_t i = lines; i < count; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + i, count - i < sizeof(word) ? count - i : sizeof(word));
    sum += word;
  }
  return sum;
}

template <size_t kVectorBytes, size_t... kIndex>
constexpr ReadLoops make_read_loops(std::index_sequence<kIndex...>) {
  return {{read_all<kVectorBytes, kReadKinds[kIndex].streams, kReadKinds[kIndex].bytes_ahead>...}};
}

template <size_t kVectorBytes>
constexpr ReadLoops make_read_loops() {
  return make_read_loops<kVectorBytes>(std::make_index_sequence<kReadKindCount>{});
}

}  // namespace

#if defined(__AVX512F__)
constexpr size_t kLoadBytes = 64;
#elif defined(__AVX2__)
constexpr size_t kLoadBytes = 32;
#else
constexpr size_t kLoadBytes = 16;
#endif
constinit const ReadLoops MXSPEC_OF_ISA(kRead) = make_read_loops<kLoadBytes>();

#if defined(MXSPEC_CHOOSES)
const ReadLoops& read_loops() {
#if defined(__x86_64__)
  if (isa_available(Isa::kAvx512)) return kReadAvx512;
  if (isa_available(Isa::kAvx2)) return kReadAvx2;
#endif
  return kReadScalar;
}
#endif

}  // namespace mxspec
