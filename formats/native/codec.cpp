// The C interface: argument checks, then loops over row tiles.
#include "formats/native/codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <new>
#include <string>
#include <vector>

#include "formats/native/half.h"
#include "formats/native/isa.h"
#include "formats/native/kernels.h"
#include "formats/native/parallel.h"
#include "formats/native/weight_formats.h"

namespace mxspec::formats {
namespace {

constexpr int64_t kMostEntries = int64_t{1} << 40;
constexpr int64_t kGrainEntries = int64_t{1} << 17;  // about 50 us of work: above what starting a thread costs

int32_t check_shape(int64_t n, int64_t k) {
  return n >= 1 && k >= 1 && n <= kMostEntries / k ? MXSPEC_OK : MXSPEC_BAD_SHAPE;
}

int32_t check_matrix(const mxspec_matrix* values) {
  if (!values || !values->data) return MXSPEC_NULL_POINTER;
  if (const int32_t status = check_shape(values->n, values->k)) return status;
  if (values->type < MXSPEC_FLOAT32 || values->type > MXSPEC_BFLOAT16) return MXSPEC_BAD_CHOICE;
  if (values->transposed != 0 && values->transposed != 1) return MXSPEC_BAD_CHOICE;
  return values->stride >= (values->transposed ? values->n : values->k) ? MXSPEC_OK : MXSPEC_BAD_SHAPE;
}

int32_t check_element(int32_t element) {
  return element >= 0 && element < kElementCount ? MXSPEC_OK : MXSPEC_BAD_CHOICE;
}

int32_t check_rounding(int32_t rounding) {
  return rounding == MXSPEC_EVEN || rounding == MXSPEC_AWAY ? MXSPEC_OK : MXSPEC_BAD_CHOICE;
}

int32_t check_rows(const mxspec_matrix& values, int64_t begin, int64_t end) {
  const bool on_tiles = begin % kTileRows == 0 && (end % kTileRows == 0 || end == values.n);
  return 0 <= begin && begin < end && end <= values.n && on_tiles ? MXSPEC_OK : MXSPEC_BAD_ROWS;
}

// The 16 x 32 tile at (row, column), zeros beyond the matrix.
void load_tile(const mxspec_matrix& matrix, const Kernels& kernels, int64_t row, int64_t column, ValueTile& values) {
  const int64_t bytes = matrix.type == MXSPEC_FLOAT32 ? 4 : 2;
  const int64_t first = matrix.transposed ? column * matrix.stride + row : row * matrix.stride + column;
  const char* data = static_cast<const char*>(matrix.data) + first * bytes;
  const int64_t rows = std::min<int64_t>(kTileRows, matrix.n - row);
  const int64_t columns = std::min<int64_t>(kBlock, matrix.k - column);
  if (rows == kTileRows && columns == kBlock) {
    kernels.load(data, matrix.type, matrix.transposed != 0, matrix.stride, values);
    return;
  }
  alignas(64) char whole[kTileCodes * 4] = {};
  const int64_t lines = matrix.transposed ? columns : rows;
  const int64_t length = matrix.transposed ? rows : columns;
  const int64_t stride = matrix.transposed ? kTileRows : kBlock;
  for (int64_t line = 0; line < lines; ++line)
    std::memcpy(whole + line * stride * bytes, data + line * matrix.stride * bytes,
                static_cast<size_t>(length * bytes));
  kernels.load(whole, matrix.type, matrix.transposed != 0, stride, values);
}

int64_t grain_of(int64_t k) { return std::max<int64_t>(1, kGrainEntries / (kTileRows * k)); }

mxspec_statistics& operator+=(mxspec_statistics& total, const TileSums& sums) {
  double error = 0, norm = 0;
  for (int lane = 0; lane < 16; ++lane) {
    error += sums.error[lane];
    norm += sums.norm[lane];
  }
  total.squared_error += error;
  total.squared_norm += norm;
  total.nonfinite += sums.nonfinite;
  total.overflow += sums.overflow;
  total.underflow += sums.underflow;
  return total;
}

// body(tile, sums of that row tile) over all row tiles; the sums are added in tile order whatever the threads did.
template <typename Body>
int32_t over_row_tiles(int64_t n, int64_t k, int threads, mxspec_statistics* statistics, const Body& body) try {
  const int64_t tiles = ceil_div(n, kTileRows);
  std::vector<mxspec_statistics> parts(static_cast<size_t>(tiles));
  for_each_tile(tiles, grain_of(k), threads, [&](int64_t tile) {
    TileSums sums{};
    body(tile, sums);
    parts[static_cast<size_t>(tile)] += sums;
  });
  mxspec_statistics total{};
  for (const mxspec_statistics& part : parts) {
    total.squared_error += part.squared_error;
    total.squared_norm += part.squared_norm;
    total.nonfinite += part.nonfinite;
    total.overflow += part.overflow;
    total.underflow += part.underflow;
  }
  if (statistics) *statistics = total;
  return MXSPEC_OK;
} catch (const std::bad_alloc&) {
  return MXSPEC_NO_MEMORY;
}

int code_of(const Pairs& codes, int row, int column) {
  return static_cast<int>(codes.of[row][column / 2] >> 16 * (column % 2) & 255);
}

void store_codes(const Pairs& pairs, int64_t rows, int64_t columns, int64_t k, uint8_t* codes) {
  for (int row = 0; row < rows; ++row)
    for (int column = 0; column < columns; ++column)
      codes[row * k + column] = static_cast<uint8_t>(code_of(pairs, row, column));
}

void unpack_tile(const uint8_t* tile, int bits, Pairs& codes) {
  for (int row = 0; row < kTileRows; ++row) {
    uint32_t quads[kQuads];
    const auto run = [&](int i) {
      uint32_t quad;
      std::memcpy(&quad, tile + i * kRunBytes + row * static_cast<int>(sizeof quad), sizeof quad);
      return quad;
    };
    split_runs(bits, run, quads);
    for (int q = 0; q < kQuads; ++q) {
      codes.of[row][2 * q] = quads[q] & 0x00FF00FF;
      codes.of[row][2 * q + 1] = quads[q] >> 8 & 0x00FF00FF;
    }
  }
}

std::string unknown_isa_text() {
  std::string names;
  for (const Isa isa : kAllIsas) {
    const bool last = isa == *std::rbegin(kAllIsas);
    names.append(names.empty() ? "" : last ? " or " : ", ").append(isa_name(isa));
  }
  return "MXSPEC_ISA names no instruction set: " + names;
}

}  // namespace
}  // namespace mxspec::formats

using namespace mxspec::formats;

extern "C" {

const char* mxspec_status_text(int32_t status) try {
  if (status == MXSPEC_UNKNOWN_ISA) {
    static const std::string text = unknown_isa_text();
    return text.c_str();
  }
  static constexpr const char* texts[] = {
      "ok",
      "null pointer",
      ("bad shape: rows and columns must be at least 1, their product at most 2^40, and a line at least as long as its "
       "stride allows"),
      "unknown element, rounding or type",
      "bad row range: it must lie in the matrix and start and end on a multiple of 16 rows (or end at the last row)",
      "the output has not the size of the tiles",
      "a code is above the largest of its element",
      "",  // MXSPEC_UNKNOWN_ISA, above
      "MXSPEC_ISA names an instruction set that this machine or this build lacks",
      "out of memory",
  };
  return status >= 0 && status < static_cast<int32_t>(std::size(texts)) ? texts[status] : "unknown status";
} catch (const std::bad_alloc&) {
  return "out of memory";
}

const char* mxspec_codec_isa(const char* wanted) {
  const Kernels* kernels = nullptr;
  return find_kernels(wanted, &kernels) == MXSPEC_OK ? kernels->name : nullptr;
}

const char* mxspec_codec_weight_formats(void) try {
  static const std::string text = weight_formats_text();
  return text.c_str();
} catch (const std::bad_alloc&) {
  return "";
}

int32_t mxspec_quantize(const mxspec_matrix* values, int32_t element, int32_t rounding, int32_t threads, uint8_t* codes,
                        uint8_t* scales) {
  const Kernels* kernels = nullptr;
  if (const int32_t status = check_matrix(values)) return status;
  if (!codes || !scales) return MXSPEC_NULL_POINTER;
  if (check_element(element) || check_rounding(rounding)) return MXSPEC_BAD_CHOICE;
  if (const int32_t status = choose_kernels(&kernels)) return status;
  const int64_t n = values->n, k = values->k, blocks = ceil_div(k, kBlock);
  return over_row_tiles(n, k, threads, nullptr, [&](int64_t tile, TileSums& sums) {
    const int64_t row = tile * kTileRows, rows = std::min<int64_t>(kTileRows, n - row);
    ValueTile block;
    Pairs pairs;
    uint8_t block_scales[kTileRows];
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t column = b * kBlock;
      load_tile(*values, *kernels, row, column, block);
      kernels->quantize(block, element, rounding, pairs, block_scales, sums);
      store_codes(pairs, rows, std::min<int64_t>(kBlock, k - column), k, codes + row * k + column);
      for (int64_t r = 0; r < rows; ++r) scales[(row + r) * blocks + b] = block_scales[r];
    }
  });
}

int32_t mxspec_dequantize(const uint8_t* codes, const uint8_t* scales, int64_t n, int64_t k, int32_t element,
                          float* values) {
  if (!codes || !scales || !values) return MXSPEC_NULL_POINTER;
  if (const int32_t status = check_shape(n, k)) return status;
  if (const int32_t status = check_element(element)) return status;
  const DefaultFloatEnvironment environment;
  float value_of[256];
  for (int code = 0; code < element_of(element).codes(); ++code) value_of[code] = element_of(element).value(code);
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t begin = 0; begin < k; begin += kBlock) {
      const int byte = *scales++;
      const float scale = byte == kNaNScale ? std::nanf("") : std::ldexp(1.0f, byte - 127);
      for (int64_t column = begin; column < std::min<int64_t>(k, begin + kBlock); ++column) {
        const uint8_t code = codes[row * k + column];
        if (code >= element_of(element).codes()) return MXSPEC_BAD_CODE;
        values[row * k + column] = value_of[code] * scale;
      }
    }
  }
  return MXSPEC_OK;
}

int32_t mxspec_pack(const uint8_t* codes, const uint8_t* scales, int64_t n, int64_t k, int32_t element,
                    uint8_t* packed) {
  const Kernels* kernels = nullptr;
  if (!codes || !scales || !packed) return MXSPEC_NULL_POINTER;
  if (const int32_t status = check_shape(n, k)) return status;
  if (const int32_t status = check_element(element)) return status;
  if (const int32_t status = choose_kernels(&kernels)) return status;
  if (std::any_of(codes, codes + n * k, [&](uint8_t code) { return code >= element_of(element).codes(); }))
    return MXSPEC_BAD_CODE;
  const int bits = element_of(element).bits, tile_codes = code_bytes(bits);
  const int64_t blocks = ceil_div(k, kBlock);
  for (int64_t row = 0; row < n; row += kTileRows) {
    const int64_t rows = std::min<int64_t>(kTileRows, n - row);
    uint8_t* row_tile = packed + row / kTileRows * blocks * block_bytes(bits);
    for (int64_t b = 0; b < blocks; ++b) {
      Pairs pairs{};
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < std::min<int64_t>(kBlock, k - b * kBlock); ++c)
          pairs.of[r][c / 2] |= static_cast<uint32_t>(codes[(row + r) * k + b * kBlock + c]) << 16 * (c % 2);
      kernels->pack(pairs, bits, row_tile + b * tile_codes);
      uint8_t* tile_scales = row_tile + blocks * tile_codes + b * kTileRows;
      for (int64_t r = 0; r < kTileRows; ++r) tile_scales[r] = r < rows ? scales[(row + r) * blocks + b] : 0;
    }
  }
  return MXSPEC_OK;
}

int32_t mxspec_unpack(const uint8_t* packed, int64_t n, int64_t k, int32_t element, uint8_t* codes, uint8_t* scales) {
  if (!packed || !codes || !scales) return MXSPEC_NULL_POINTER;
  if (const int32_t status = check_shape(n, k)) return status;
  if (const int32_t status = check_element(element)) return status;
  const int bits = element_of(element).bits, tile_codes = code_bytes(bits);
  const int64_t blocks = ceil_div(k, kBlock);
  for (int64_t row = 0; row < n; row += kTileRows) {
    const int64_t rows = std::min<int64_t>(kTileRows, n - row);
    const uint8_t* row_tile = packed + row / kTileRows * blocks * block_bytes(bits);
    for (int64_t b = 0; b < blocks; ++b) {
      Pairs pairs;
      unpack_tile(row_tile + b * tile_codes, bits, pairs);
      store_codes(pairs, rows, std::min<int64_t>(kBlock, k - b * kBlock), k, codes + row * k + b * kBlock);
      for (int64_t r = 0; r < rows; ++r)
        scales[(row + r) * blocks + b] = row_tile[blocks * tile_codes + b * kTileRows + r];
    }
  }
  return MXSPEC_OK;
}

int32_t mxspec_quantize_pack(const mxspec_matrix* values, int64_t row_begin, int64_t row_end, int32_t element,
                             int32_t rounding, int32_t threads, uint8_t* packed, int64_t packed_bytes,
                             mxspec_statistics* statistics) {
  const Kernels* kernels = nullptr;
  if (const int32_t status = check_matrix(values)) return status;
  if (!packed || !statistics) return MXSPEC_NULL_POINTER;
  if (const int32_t status = check_rows(*values, row_begin, row_end)) return status;
  if (check_element(element) || check_rounding(rounding)) return MXSPEC_BAD_CHOICE;
  if (const int32_t status = choose_kernels(&kernels)) return status;
  const int bits = element_of(element).bits, tile_codes = code_bytes(bits);
  const int64_t blocks = ceil_div(values->k, kBlock), row_tile_bytes = blocks * block_bytes(bits);
  if (packed_bytes != ceil_div(row_end - row_begin, kTileRows) * row_tile_bytes) return MXSPEC_BAD_OUTPUT;
  return over_row_tiles(row_end - row_begin, values->k, threads, statistics, [&](int64_t tile, TileSums& sums) {
    uint8_t* codes = packed + tile * row_tile_bytes;
    uint8_t* scales = codes + blocks * tile_codes;
    ValueTile block;
    Pairs pairs;
    for (int64_t b = 0; b < blocks; ++b) {
      load_tile(*values, *kernels, row_begin + tile * kTileRows, b * kBlock, block);
      kernels->quantize(block, element, rounding, pairs, scales + b * kTileRows, sums);
      kernels->pack(pairs, bits, codes + b * tile_codes);
    }
  });
}

int32_t mxspec_pack_fp16(const mxspec_matrix* values, int64_t row_begin, int64_t row_end, int32_t threads,
                         uint8_t* packed, int64_t packed_bytes, mxspec_statistics* statistics) {
  const Kernels* kernels = nullptr;
  if (const int32_t status = check_matrix(values)) return status;
  if (!packed || !statistics) return MXSPEC_NULL_POINTER;
  if (const int32_t status = check_rows(*values, row_begin, row_end)) return status;
  if (const int32_t status = choose_kernels(&kernels)) return status;
  const int64_t blocks = ceil_div(values->k, kBlock), row_tile_bytes = blocks * kHalfTileBytes;
  if (packed_bytes != ceil_div(row_end - row_begin, kTileRows) * row_tile_bytes) return MXSPEC_BAD_OUTPUT;
  return over_row_tiles(row_end - row_begin, values->k, threads, statistics, [&](int64_t tile, TileSums& sums) {
    ValueTile block;
    uint16_t halves[kTileCodes];
    for (int64_t b = 0; b < blocks; ++b) {
      load_tile(*values, *kernels, row_begin + tile * kTileRows, b * kBlock, block);
      kernels->pack_half(block, halves, sums);
      std::memcpy(packed + tile * row_tile_bytes + b * kHalfTileBytes, halves, sizeof halves);
    }
  });
}

int32_t mxspec_unpack_fp16(const uint8_t* packed, int64_t n, int64_t k, uint16_t* values) {
  if (!packed || !values) return MXSPEC_NULL_POINTER;
  if (const int32_t status = check_shape(n, k)) return status;
  const int64_t padded = ceil_div(k, kBlock) * kBlock;
  for (int64_t row = 0; row < n; ++row)
    for (int64_t column = 0; column < k; ++column)
      std::memcpy(values + row * k + column,
                  packed + 2 * ((row / kTileRows * padded + column) * kTileRows + row % kTileRows), 2);
  return MXSPEC_OK;
}

}  // extern "C"
