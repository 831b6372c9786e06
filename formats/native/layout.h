// Sizes and bit positions of the kernel tiles. docs/formats.md has the picture and a worked example.
#pragma once

#include <cstdint>

namespace mxspec::formats {

inline constexpr int kTileRows = 16;                   // output rows of a tile
inline constexpr int kBlock = 32;                      // columns of a tile: one MX block
inline constexpr int kVectors = kBlock / 2;            // a vector of a tile holds two columns of its 16 rows
inline constexpr int kTileCodes = kTileRows * kBlock;  // 512
inline constexpr int kQuads = kBlock / 4;              // a vector of codes holds four columns of its 16 rows
inline constexpr int kRunBytes = kTileRows * 4;        // of such a vector, a byte a code
inline constexpr int kHalfTileBytes = kTileCodes * 2;
static_assert(kRunBytes == 64 && kHalfTileBytes == 1024);

// Bytes of the codes of a tile, of `bits` bits each.
constexpr int code_bytes(int bits) { return kTileCodes * bits / 8; }
static_assert(code_bytes(4) == 256 && code_bytes(6) == 384 && code_bytes(8) == 512);
// And with the scales, which follow after all codes of a row tile.
constexpr int block_bytes(int bits) { return code_bytes(bits) + kTileRows; }

constexpr int64_t ceil_div(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

// Two codes a uint32, for each row of a tile and each of its 16 pairs of columns: code(2v) | code(2v + 1) << 16.
struct Pairs {
  uint32_t of[kTileRows][kVectors];
};

// The codes of a tile are eight vectors of 64 bytes. Vector q holds the columns 4q to 4q + 3; a row is a uint32 of it,
// in which the column 4q is byte 0, 4q + 2 byte 1, 4q + 1 byte 2 and 4q + 3 byte 3: Pairs 2q | Pairs (2q + 1) << 8.
//   8 bits  the vectors one after the other
//   6 bits  vectors 0..3 and 4..7 in three runs of 64 bytes each: run i has vector i in the low six bits of its bytes,
//   and
//           bits 2i and 2i + 1 of the fourth vector above these
//   4 bits  two vectors a run: the even one in the low four bits
inline constexpr uint32_t kLow2 = 0x03030303, kLow4 = 0x0F0F0F0F, kLow6 = 0x3F3F3F3F;

// The vectors of a tile from its runs, a row (or, in vector types, several) at a time: quads[8] from run(i).
template <typename Quad, typename Run>
inline void split_runs(int bits, const Run& run, Quad* quads) {
  if (bits == 8) {
    for (int q = 0; q < kQuads; ++q) quads[q] = run(q);
  } else if (bits == 4) {
    for (int i = 0; i < kQuads / 2; ++i) {
      quads[2 * i] = run(i) & kLow4;
      quads[2 * i + 1] = run(i) >> 4 & kLow4;
    }
  } else {
    for (int half = 0; half < 2; ++half) {
      const Quad a = run(half * 3), b = run(half * 3 + 1), c = run(half * 3 + 2);
      quads[half * 4] = a & kLow6;
      quads[half * 4 + 1] = b & kLow6;
      quads[half * 4 + 2] = c & kLow6;
      quads[half * 4 + 3] = (a >> 6 & kLow2) | (b >> 6 & kLow2) << 2 | (c >> 6 & kLow2) << 4;
    }
  }
}

// The codes of a row of a tile, in the order of its columns. Static, as in half.h.
template <int kBits>
[[maybe_unused]] static void row_codes(const uint8_t* tile, int row, uint8_t (&codes)[kBlock]) {
  uint32_t quads[kQuads];
  const auto run = [&](int i) {
    uint32_t quad;
    __builtin_memcpy(&quad, tile + i * kRunBytes + row * static_cast<int>(sizeof quad), sizeof quad);
    return quad;
  };
  split_runs(kBits, run, quads);
  for (int column = 0; column < kBlock; ++column) {
    constexpr int kByte[] = {0, 2, 1, 3};
    codes[column] = static_cast<uint8_t>(quads[column / 4] >> 8 * kByte[column % 4]);
  }
}

// The reverse of split_runs: hands each run to store(i, run).
template <typename Quad, typename Store>
inline void join_runs(int bits, const Quad* quads, const Store& store) {
  if (bits == 8) {
    for (int q = 0; q < kQuads; ++q) store(q, quads[q]);
  } else if (bits == 4) {
    for (int i = 0; i < kQuads / 2; ++i) store(i, quads[2 * i] | quads[2 * i + 1] << 4);
  } else {
    for (int half = 0; half < 2; ++half) {
      const Quad* q = quads + half * 4;
      for (int i = 0; i < 3; ++i) store(half * 3 + i, q[i] | (q[3] >> 2 * i & kLow2) << 6);
    }
  }
}

}  // namespace mxspec::formats
