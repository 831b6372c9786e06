// Loops that do nothing but read: the fastest of them on some memory is the limit of every other reader of it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mxspec {

// Adds up the bytes as 64-bit words (zeros after the last), modulo 2^64, so that no read can be left out.
using ReadLoop = uint64_t (*)(const uint8_t* bytes, size_t count);

// The hardware fetches ahead by itself, on some machines better than by hints, and more streams are more misses
// under way: which of these is fastest depends on the machine, its pages and its load.
struct ReadKind {
  const char* name;
  size_t streams, bytes_ahead;  // streams are read alternately; lines are fetched this many bytes ahead, or 0
};
inline constexpr ReadKind kReadKinds[] = {
    {"1 stream", 1, 0},
    {"2 streams", 2, 0},
    {"4 streams", 4, 0},
    {"1 stream, fetched", 1, 4096},
    {"2 streams, fetched", 2, 4096},
    {"4 streams, fetched", 4, 4096},
};
inline constexpr size_t kReadKindCount = sizeof(kReadKinds) / sizeof(kReadKinds[0]);

// One loop a kind. Loads have the width of the file's instruction set: 64-bit words keep fewer misses under way,
// and end at 27 GB/s a core where wide loads reach 37.
struct ReadLoops {
  ReadLoop loops[kReadKindCount];
};
extern const ReadLoops kReadScalar, kReadAvx2, kReadAvx512;

// The widest loops of this machine, regardless of MXSPEC_ISA: memory is as fast for every kernel.
const ReadLoops& read_loops();

}  // namespace mxspec
