// The codec's C interface: every instruction set against the scalar reference on awkward bits, in buffers without a
// byte to spare (the address sanitizer sees one step too far), and every status that a caller can provoke.
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "formats/native/codec.h"
#include "formats/native/isa.h"
#include "formats/native/weight_formats.h"
#include "tests/native/check.h"

namespace {

using Bytes = std::vector<uint8_t>;

int64_t up(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

struct Shape {
  int64_t n, k;
};

// Random bits in which the exponents of a row lie close together, with zeros, subnormals, NaN and infinities.
Bytes awkward(const Shape& shape, int32_t type, uint32_t seed) {
  std::mt19937 random(seed);
  const size_t entries = static_cast<size_t>(shape.n * shape.k);
  const size_t size = type == MXSPEC_FLOAT32 ? 4 : 2;
  Bytes bytes(entries * size);
  for (size_t i = 0; i < entries; ++i) {
    uint32_t bits = random();
    const uint32_t centre = (static_cast<uint32_t>(i) / 96 * 37) % 250;
    if (random() % 16) bits = (bits & 0x807FFFFF) | (centre + random() % 8 - (centre > 8 ? 8 : 0)) << 23;
    if (random() % 20 == 0) bits &= 0x80000000;
    if (type == MXSPEC_FLOAT16) bits = random() % 9 ? bits & 0xBFFF0000 : bits;  // mostly below 2
    if (type != MXSPEC_FLOAT32) bits >>= 16;
    std::memcpy(bytes.data() + i * size, &bits, size);
  }
  return bytes;
}

void use_isa(const char* isa) { setenv("MXSPEC_ISA", isa, 1); }

std::vector<std::string> isas() {
  std::vector<std::string> found;
  for (const mxspec::Isa isa : mxspec::kAllIsas)
    if (mxspec_codec_isa(mxspec::isa_name(isa))) found.emplace_back(mxspec::isa_name(isa));
  return found;
}

bool same(const mxspec_statistics& a, const mxspec_statistics& b) {
  return a.squared_error == b.squared_error && a.squared_norm == b.squared_norm && a.nonfinite == b.nonfinite &&
         a.overflow == b.overflow && a.underflow == b.underflow;
}

struct Packed {
  Bytes bytes;
  mxspec_statistics statistics{};
};

// Bytes of a tile of 16 rows by 32 columns: codes of `bits`, and a scale a row.
int64_t tile_bytes(int32_t element) { return 16 * 32 * mxspec::formats::element_of(element).bits / 8 + 16; }

constexpr int kE2m3 = mxspec::formats::element_number(mxspec::formats::WeightFormat::kMxfp6E2m3);

Packed pack(const mxspec_matrix& matrix, int32_t element, int32_t rounding, int32_t threads, bool halves) {
  Packed packed;
  packed.bytes.assign(static_cast<size_t>(up(matrix.n, 16) * up(matrix.k, 32) * (halves ? 1024 : tile_bytes(element))),
                      0xAA);
  const int64_t size = static_cast<int64_t>(packed.bytes.size());
  const int32_t status =
      halves ? mxspec_pack_fp16(&matrix, 0, matrix.n, threads, packed.bytes.data(), size, &packed.statistics)
             : mxspec_quantize_pack(&matrix, 0, matrix.n, element, rounding, threads, packed.bytes.data(), size,
                                    &packed.statistics);
  CHECK(status == MXSPEC_OK) << mxspec_status_text(status);
  return packed;
}

void every_isa_equals_the_reference(const Shape& shape) {
  for (int32_t type : {MXSPEC_FLOAT32, MXSPEC_FLOAT16, MXSPEC_BFLOAT16}) {
    for (int32_t transposed : {0, 1}) {
      const Bytes values = awkward(shape, type, static_cast<uint32_t>(shape.n * 7 + shape.k));
      const mxspec_matrix matrix{values.data(), shape.n, shape.k, transposed ? shape.n : shape.k, type, transposed};
      for (int32_t element = 0; element < mxspec::formats::kElementCount; ++element) {
        for (int32_t rounding : {MXSPEC_EVEN, MXSPEC_AWAY}) {
          for (bool halves : {false, true}) {
            use_isa("scalar");
            const Packed wanted = pack(matrix, element, rounding, 1, halves);
            for (const std::string& isa : isas()) {
              use_isa(isa.c_str());
              const Packed got = pack(matrix, element, rounding, 3, halves);
              CHECK(got.bytes == wanted.bytes) << isa << shape.n << shape.k << "type" << type << "halves" << halves;
              CHECK(same(got.statistics, wanted.statistics)) << isa << shape.n << shape.k << "type" << type;
            }
          }
        }
      }
    }
  }
}

void two_steps_equal_one(const Shape& shape) {
  const Bytes values = awkward(shape, MXSPEC_FLOAT32, 1);
  const mxspec_matrix matrix{values.data(), shape.n, shape.k, shape.k, MXSPEC_FLOAT32, 0};
  for (const std::string& isa : isas()) {
    use_isa(isa.c_str());
    const Packed wanted = pack(matrix, kE2m3, MXSPEC_EVEN, 2, false);
    Bytes codes(static_cast<size_t>(shape.n * shape.k)), scales(static_cast<size_t>(shape.n * up(shape.k, 32)));
    Bytes packed(wanted.bytes.size(), 0xAA), codes_again(codes.size()), scales_again(scales.size());
    CHECK(mxspec_quantize(&matrix, kE2m3, MXSPEC_EVEN, 2, codes.data(), scales.data()) == MXSPEC_OK);
    CHECK(mxspec_pack(codes.data(), scales.data(), shape.n, shape.k, kE2m3, packed.data()) == MXSPEC_OK);
    CHECK(packed == wanted.bytes) << isa << shape.n << shape.k;
    CHECK(mxspec_unpack(packed.data(), shape.n, shape.k, kE2m3, codes_again.data(), scales_again.data()) == MXSPEC_OK);
    CHECK(codes_again == codes && scales_again == scales) << isa << shape.n << shape.k;
    std::vector<float> floats(codes.size());
    CHECK(mxspec_dequantize(codes.data(), scales.data(), shape.n, shape.k, kE2m3, floats.data()) == MXSPEC_OK);
  }
}

void bad_arguments_are_refused() {
  use_isa("");
  const std::vector<float> values(40 * 33);
  Bytes out(3 * 2 * 1024);
  mxspec_statistics statistics{};
  const mxspec_matrix good{values.data(), 40, 33, 33, MXSPEC_FLOAT32, 0};
  const auto status_of = [&](mxspec_matrix matrix, int64_t begin, int64_t end, int64_t bytes, int32_t element = 0,
                             int32_t rounding = 0) {
    return mxspec_quantize_pack(&matrix, begin, end, element, rounding, 1, out.data(), bytes, &statistics);
  };
  const auto with = [&](auto change) {
    mxspec_matrix matrix = good;
    change(matrix);
    return status_of(matrix, 0, 40, 2400);
  };
  CHECK(status_of(good, 0, 40, 2400) == MXSPEC_OK);
  CHECK(status_of(good, 16, 40, 1600) == MXSPEC_OK);
  CHECK(status_of(good, 0, 40, 2399) == MXSPEC_BAD_OUTPUT);
  CHECK(status_of(good, 0, 16, 2400) == MXSPEC_BAD_OUTPUT);
  for (auto [begin, end] : {std::pair<int64_t, int64_t>{-16, 16}, {0, 48}, {0, 20}, {8, 40}, {32, 32}, {32, 16}})
    CHECK(status_of(good, begin, end, 2400) == MXSPEC_BAD_ROWS) << begin << end;
  CHECK(status_of(good, 0, 40, 2400, 4, 0) == MXSPEC_BAD_CHOICE);
  CHECK(status_of(good, 0, 40, 2400, 0, -1) == MXSPEC_BAD_CHOICE);
  CHECK(with([](mxspec_matrix& m) { m.type = 3; }) == MXSPEC_BAD_CHOICE);
  CHECK(with([](mxspec_matrix& m) { m.transposed = 2; }) == MXSPEC_BAD_CHOICE);
  CHECK(with([](mxspec_matrix& m) { m.data = nullptr; }) == MXSPEC_NULL_POINTER);
  CHECK(with([](mxspec_matrix& m) { m.n = 0; }) == MXSPEC_BAD_SHAPE);
  CHECK(with([](mxspec_matrix& m) { m.k = -1; }) == MXSPEC_BAD_SHAPE);
  CHECK(with([](mxspec_matrix& m) { m.n = m.k = INT64_MAX / 2; }) == MXSPEC_BAD_SHAPE);
  CHECK(with([](mxspec_matrix& m) { m.stride = 32; }) == MXSPEC_BAD_SHAPE);
  CHECK(with([](mxspec_matrix& m) { m.transposed = 1; }) == MXSPEC_BAD_SHAPE);  // lines of 40, 33 apart
  CHECK(mxspec_quantize_pack(&good, 0, 40, 0, 0, 1, nullptr, 2400, &statistics) == MXSPEC_NULL_POINTER);
  CHECK(mxspec_pack_fp16(&good, 0, 40, 1, out.data(), 2400, &statistics) == MXSPEC_BAD_OUTPUT);
  CHECK(mxspec_pack_fp16(&good, 0, 40, 1, out.data(), 6144, nullptr) == MXSPEC_NULL_POINTER);

  const Bytes codes(1, 64), scale(1, 127);
  float value = 0;
  CHECK(mxspec_pack(codes.data(), scale.data(), 1, 1, 0, out.data()) == MXSPEC_BAD_CODE);
  CHECK(mxspec_dequantize(codes.data(), scale.data(), 1, 1, 0, &value) == MXSPEC_BAD_CODE);
  CHECK(mxspec_dequantize(codes.data(), scale.data(), 1, 1, 7, &value) == MXSPEC_BAD_CHOICE);
  CHECK(mxspec_unpack(out.data(), 0, 1, 0, out.data(), out.data()) == MXSPEC_BAD_SHAPE);
  CHECK(mxspec_unpack_fp16(nullptr, 1, 1, nullptr) == MXSPEC_NULL_POINTER);

  use_isa("sse9");
  CHECK(status_of(good, 0, 40, 2400) == MXSPEC_UNKNOWN_ISA);
  CHECK(mxspec_codec_isa("sse9") == nullptr);
  CHECK(std::string(mxspec_codec_isa("scalar")) == "scalar");
  for (int32_t status = MXSPEC_OK; status <= MXSPEC_NO_MEMORY; ++status)
    CHECK(std::string(mxspec_status_text(status)) != "unknown status") << status;
  CHECK(std::string(mxspec_status_text(99)) == "unknown status");
}

}  // namespace

int main() {
  for (const Shape& shape : {Shape{1, 1}, {16, 32}, {15, 31}, {17, 33}, {64, 200}, {3, 700}, {1000, 96}})
    every_isa_equals_the_reference(shape);
  for (const Shape& shape : {Shape{1, 1}, {16, 32}, {17, 33}, {50, 100}}) two_steps_equal_one(shape);
  bad_arguments_are_refused();
  return mxspec::test::check_result();
}
