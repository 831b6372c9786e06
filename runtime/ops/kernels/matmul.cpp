#include "runtime/ops/kernels/matmul.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/ops/kernels/matmul_kernels.h"

namespace mxspec {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kPanelBlocks = 8;         // k blocks that are decoded at a time: 8 KB stay in the first-level cache
constexpr size_t kFp16PanelBlocks = 8;     // k blocks of fp16 that all groups read in turn: 2 x 8 KB
constexpr size_t kPanelRows = 192;         // most activation rows that take turns with one row tile
constexpr size_t kPanelBytes = 384 << 10;  // and most bytes of them, to stay in the second-level cache

constexpr Mxfp6Element make_element(int exponent_bits, int mantissa_bits, int unit_exponent, int high_shift) {
  Mxfp6Element element = {};
  element.unit_exponent = unit_exponent;
  element.high_shift = high_shift;
  for (int code = 0; code < 32; ++code) {
    const int exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1);
    const int mantissa = code & ((1 << mantissa_bits) - 1);
    const int hidden = 1 << mantissa_bits;
    const int value = exponent == 0 ? mantissa : (hidden | mantissa) << (exponent - 1);
    element.table[code] = static_cast<int16_t>(value);
    element.table[code + 32] = static_cast<int16_t>(-value);
    (code < 16 ? element.low[code] : element.high[code - 16]) =
        static_cast<uint8_t>(code < 16 ? value : value >> high_shift);
  }
  return element;
}

constexpr Mxfp6Element kE3m2 = make_element(3, 2, 4, 3);
constexpr Mxfp6Element kE2m3 = make_element(2, 3, 3, 0);
static_assert(kE3m2.table[31] == 448 && kE2m3.table[31] == 60);

const MatmulKernels& kernels_of(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512Vnni) return matmul_kernels_avx512vnni();
  if (isa == Isa::kAvx512) return matmul_kernels_avx512();
  if (isa == Isa::kAvx2) return matmul_kernels_avx2();
#elif defined(__aarch64__)
  if (isa == Isa::kNeon) return matmul_kernels_neon();
#endif
  (void)isa;
  return matmul_kernels_scalar();
}

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// What all the tasks of one call share.
struct Call {
  const MatmulShape shape;
  const WeightFormat format;
  const MatmulOperands& operands;
  const MatmulKernels& kernels;
  const RowGroups groups;
  // Scratch
  int16_t* q = nullptr;      // MXFP6
  float* scales = nullptr;   // MXFP6
  float* values = nullptr;   // fp16
  RowKind* kinds = nullptr;  // [m]

  bool mxfp6() const { return format != WeightFormat::kFp16; }
  bool decodes_in_registers() const {
    return kernels.decode == nullptr || (groups.count == 1 && kernels.multiply_packed[groups.rows(0)] != nullptr);
  }
  // Row tiles that one call of a kernel takes.
  size_t tiles_at_once() const {
    if (!mxfp6()) return kernels.fp16_tiles[groups.rows(0)];
    return decodes_in_registers() ? kernels.packed_tiles[groups.rows(0)] : 1;
  }
  // Groups that take turns with one row tile.
  size_t groups_at_once() const {
    const size_t value_bytes = mxfp6() ? sizeof(int16_t) : sizeof(float);
    const size_t panel_rows = kPanelBytes / (shape.k_blocks() * kBlock * value_bytes);
    return std::max<size_t>(1, std::min(panel_rows, kPanelRows) / groups.rows(0));
  }
  QuantisedGroup quantised(size_t group, size_t block) const {
    const size_t offset = groups.first(group) * shape.k_blocks() + block * groups.rows(group);
    return {q + offset * kBlock, scales + offset};
  }
  const float* copied(size_t group, size_t block) const {
    return values + (groups.first(group) * shape.k_blocks() + block * groups.rows(group)) * kBlock;
  }
  const uint8_t* row_tile(size_t tile) const { return operands.packed + tile * shape.row_tile_bytes(format); }
  const uint8_t* weight_scales(size_t tile) const { return row_tile(tile) + shape.k_blocks() * kMxfp6TileBytes; }
};

void prepare_rows(const Call& call, size_t group) {
  const size_t rows = call.groups.rows(group), k = call.shape.k;
  for (size_t r = 0; r < rows; ++r) {
    const size_t row = call.groups.first(group) + r;
    const float* a = call.operands.a + row * k;
    if (call.mxfp6()) {
      const QuantisedGroup out = call.quantised(group, 0);
      call.kinds[row] =
          call.kernels.quantise_row(a, k, mxfp6_element(call.format).unit_exponent, rows,
                                    const_cast<int16_t*>(out.q) + r * kBlock, const_cast<float*>(out.scales) + r);
    } else {
      call.kinds[row] = copy_row(a, k, rows, const_cast<float*>(call.copied(group, 0)) + r * kBlock);
    }
  }
}

// The row tiles of one call of a kernel. `count` are computed; only the first `kept` are wanted. Where these are fewer,
// all are the first one (tile_bytes = 0).
struct Tiles {
  size_t first, count, kept;

  size_t bytes(const Call& call) const { return kept < count ? 0 : call.shape.row_tile_bytes(call.format); }
};

// acc float[rows][count][16] to the rows of a group.
void store(const Call& call, size_t group, const Tiles& tiles, const float* acc) {
  const size_t n = call.shape.n, first_row = call.groups.first(group), rows = call.groups.rows(group);
  const float* bias = call.operands.bias;
  for (size_t r = 0; r < rows; ++r, acc += tiles.count * kTileRows) {
    for (size_t t = 0; t < tiles.kept; ++t) {
      const size_t column = (tiles.first + t) * kTileRows;
      const float* sums = acc + t * kTileRows;
      float* out = call.operands.out + (first_row + r) * n + column;
      if (column + kTileRows <= n) {  // of constant size: no call
        std::memcpy(out, sums, kTileRows * sizeof(float));
      } else {
        std::memcpy(out, sums, (n - column) * sizeof(float));
      }
      if (bias == nullptr) continue;
      for (size_t i = 0; i < std::min(kTileRows, n - column); ++i) out[i] = sums[i] + bias[column + i];
    }
  }
}

// The groups [first, last): at most kPanelRows rows, which share the weights of some row tiles.
struct GroupRange {
  size_t first, last;
};

// Each group's part of acc float[rows of the range][count][16] to body(group, part).
template <class Body>
void for_groups(const Call& call, const Tiles& tiles, GroupRange range, float* acc, Body body) {
  for (size_t group = range.first; group < range.last; ++group) {
    body(group, acc);
    acc += call.groups.rows(group) * tiles.count * kTileRows;
  }
}

void multiply_packed_tiles(const Call& call, const Tiles& tiles, GroupRange range) {
  alignas(kAlignment) float acc[kMostRows * kMostTiles * kTileRows];
  const uint8_t* codes = call.row_tile(tiles.first);
  for (size_t group = range.first; group < range.last; ++group) {
    const uint8_t* next_codes = group + 1 < range.last ? codes : call.row_tile(tiles.first + tiles.kept);
    call.kernels.multiply_packed[call.groups.rows(group)](codes, call.weight_scales(tiles.first), tiles.bytes(call),
                                                          next_codes, call.shape.k_blocks(), mxfp6_element(call.format),
                                                          call.quantised(group, 0), acc);
    store(call, group, tiles, acc);
  }
}

// A panel: a few k blocks of a row tile, decoded.
struct Panel {
  alignas(kAlignment) int16_t weights[kPanelBlocks * kTileVectors * 32];
  alignas(kAlignment) float scales[kPanelBlocks * kTileRows];
};

void decode_panel(const Call& call, size_t tile, size_t block, size_t blocks, Panel& panel) {
  const uint8_t* scales = call.weight_scales(tile) + block * kTileRows;
  call.kernels.decode(call.row_tile(tile) + block * kMxfp6TileBytes, blocks, mxfp6_element(call.format), panel.weights);
  for (size_t i = 0; i < blocks * kTileRows; ++i) {
    // 2^(scale - 127); byte 0 is 2^-127, a subnormal.
    panel.scales[i] = std::bit_cast<float>(std::max(static_cast<uint32_t>(scales[i]) << 23, 0x00400000u));
  }
}

void multiply_decoded_tile(const Call& call, const Tiles& tile, GroupRange range) {
  Panel panel;
  alignas(kAlignment) float acc[kPanelRows * kTileRows] = {};
  for (size_t block = 0; block < call.shape.k_blocks(); block += kPanelBlocks) {
    const size_t blocks = std::min(kPanelBlocks, call.shape.k_blocks() - block);
    decode_panel(call, tile.first, block, blocks, panel);
    for_groups(call, tile, range, acc, [&](size_t group, float* part) {
      call.kernels.multiply_decoded[call.groups.rows(group)](panel.weights, panel.scales, blocks,
                                                             call.quantised(group, block), part);
    });
  }
  for_groups(call, tile, range, acc, [&](size_t group, const float* part) { store(call, group, tile, part); });
}

void multiply_fp16_tiles(const Call& call, const Tiles& tiles, GroupRange range) {
  alignas(kAlignment) float acc[kPanelRows * kMostTiles * kTileRows];
  std::memset(acc, 0, (range.last - range.first) * call.groups.rows(0) * tiles.count * kTileRows * sizeof(float));
  const size_t k_blocks = call.shape.k_blocks();
  const bool one_group = range.last - range.first == 1;
  const size_t panel_blocks = one_group ? k_blocks : kFp16PanelBlocks;
  const size_t next = one_group ? (tiles.count - 1) * tiles.bytes(call) : 0;
  for (size_t block = 0; block < k_blocks; block += panel_blocks) {
    const size_t k_count = std::min(panel_blocks * kBlock, call.shape.k - block * kBlock);
    const uint8_t* weights = call.row_tile(tiles.first) + block * kFp16TileBytes;
    for_groups(call, tiles, range, acc, [&](size_t group, float* part) {
      call.kernels.multiply_fp16[call.groups.rows(group)](weights, tiles.bytes(call), next, k_count,
                                                          call.copied(group, block), part);
    });
  }
  for_groups(call, tiles, range, acc, [&](size_t group, const float* part) { store(call, group, tiles, part); });
}

// One output of an extreme row, in float64 where float32 has not the range; the same code for all instruction sets.
void multiply_extreme_row(const Call& call, size_t row, size_t tile, float* acc) {
  const Mxfp6Element& element = mxfp6_element(call.format);
  const size_t k = call.shape.k;
  for (size_t block = 0; block < call.shape.k_blocks(); ++block) {
    int16_t q[kBlock], weights[kTileVectors * 32];
    const int exponent =
        quantise_extreme_block(call.operands.a + row * k + block * kBlock, std::min(kBlock, k - block * kBlock), q);
    matmul_kernels_scalar().decode(call.row_tile(tile) + block * kMxfp6TileBytes, 1, element, weights);
    const uint8_t* scales = call.weight_scales(tile) + block * kTileRows;
    for (size_t i = 0; i < kTileRows; ++i) {
      int32_t sum = 0;
      for (size_t j = 0; j < kBlock; ++j) sum += weights[j / 2 * 32 + i * 2 + j % 2] * q[j];
      const double product = std::ldexp(static_cast<double>(sum), exponent - element.unit_exponent + scales[i] - 127);
      acc[i] = static_cast<float>(static_cast<double>(acc[i]) + product);
    }
  }
}

void overwrite_special_rows(const Call& call, size_t first, size_t last) {
  const size_t n = call.shape.n;
  for (size_t row = 0; row < call.shape.m; ++row) {
    if (call.kinds[row] == RowKind::kOrdinary) continue;
    for (size_t tile = first; tile < last; ++tile) {
      float acc[kTileRows] = {};
      if (call.kinds[row] == RowKind::kExtreme) {
        multiply_extreme_row(call, row, tile, acc);
      } else {
        std::fill_n(acc, kTileRows, std::numeric_limits<float>::quiet_NaN());
      }
      for (size_t column = tile * kTileRows; column < std::min(n, (tile + 1) * kTileRows); ++column) {
        const float sum = acc[column % kTileRows];
        call.operands.out[row * n + column] = call.operands.bias == nullptr ? sum : sum + call.operands.bias[column];
      }
    }
  }
}

void multiply_tiles(const Call& call, size_t first, size_t last) {
  const size_t count = call.tiles_at_once(), groups_at_once = call.groups_at_once();
  for (size_t group = 0; group < call.groups.count; group += groups_at_once) {
    const GroupRange range{group, std::min(call.groups.count, group + groups_at_once)};
    for (size_t tile = first; tile < last;) {
      const Tiles tiles{tile, count, last - tile >= count ? count : 1};
      if (!call.mxfp6()) {
        multiply_fp16_tiles(call, tiles, range);
      } else if (call.decodes_in_registers()) {
        multiply_packed_tiles(call, tiles, range);
      } else {
        multiply_decoded_tile(call, tiles, range);
      }
      tile += tiles.kept;
    }
  }
  overwrite_special_rows(call, first, last);
}

// A task is worth handing to another thread from about this time on.
constexpr double kTaskSeconds = 10e-6;
// What one core about does, to tell small work from large; nothing else depends on them.
constexpr double kBytesPerSecond = 20e9, kMultipliesPerSecond = 200e9, kValuesPerSecond = 4e9;

// How `count` units are cut into tasks. Each thread first takes one large task of most of its share (each
// start of a task waits for memory; one a thread is 8 % faster than four equal ones), then small ones, which let the
// threads end together where one of them was held up.
class Cut {
 public:
  static constexpr size_t kTasksPerThread = 2;

  Cut(double seconds, size_t count, size_t threads) : count_(count), threads_(std::min(threads, count)) {
    const double wanted = std::min(seconds / kTaskSeconds, static_cast<double>(threads * kTasksPerThread));
    tasks_ = threads < 2 ? 1 : std::clamp<size_t>(static_cast<size_t>(wanted), 1, count);
  }
  size_t tasks() const { return tasks_; }
  // First unit of a task; that of the one behind the last is the count.
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

}  // namespace

const Mxfp6Element& mxfp6_element(WeightFormat format) { return format == WeightFormat::kMxfp6E3m2 ? kE3m2 : kE2m3; }

size_t matmul_scratch_bytes(const MatmulShape& shape, WeightFormat format) {
  const size_t values = shape.m * shape.k_blocks() * kBlock;
  const size_t blocks = shape.m * shape.k_blocks();
  const bool fp16 = format == WeightFormat::kFp16;
  return kAlignment + aligned(values * (fp16 ? sizeof(float) : sizeof(int16_t))) +
         (fp16 ? 0 : aligned(blocks * sizeof(float))) + shape.m * sizeof(RowKind);
}

void matmul(const MatmulShape& shape, WeightFormat format, const MatmulOperands& operands, Isa isa, void* scratch,
            const ParallelFor& parallel) {
  if (shape.m == 0 || shape.n == 0) return;
  const MatmulKernels& kernels = kernels_of(isa);
  const size_t group_rows = shape.m <= kernels.most_rows ? shape.m : kernels.group_rows;
  Call call{shape, format, operands, kernels, RowGroups(shape.m, group_rows)};
  const size_t values = shape.m * shape.k_blocks() * kBlock;
  auto* bytes = static_cast<uint8_t*>(scratch);
  bytes += (kAlignment - reinterpret_cast<uintptr_t>(bytes) % kAlignment) % kAlignment;
  if (call.mxfp6()) {
    call.q = reinterpret_cast<int16_t*>(bytes);
    call.scales = reinterpret_cast<float*>(bytes += aligned(values * sizeof(int16_t)));
    bytes += aligned(values / kBlock * sizeof(float));
  } else {
    call.values = reinterpret_cast<float*>(bytes);
    bytes += aligned(values * sizeof(float));
  }
  call.kinds = reinterpret_cast<RowKind*>(bytes);

  parallel_ranges(parallel, call.groups.count, 1, static_cast<double>(values) / kValuesPerSecond,
                  [&](size_t first, size_t last) {
                    for (size_t group = first; group < last; ++group) prepare_rows(call, group);
                  });
  const double seconds = static_cast<double>(shape.row_tiles() * shape.row_tile_bytes(format)) / kBytesPerSecond +
                         static_cast<double>(shape.n) * static_cast<double>(values) / kMultipliesPerSecond;
  parallel_ranges(parallel, shape.row_tiles(), call.tiles_at_once(), seconds,
                  [&](size_t first, size_t last) { multiply_tiles(call, first, last); });
}

}  // namespace mxspec
