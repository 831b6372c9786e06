#include "runtime/ops/packed_matrix.h"

#include "runtime/ops/checks.h"

namespace mxspec {
namespace {

// Far beyond any model, and small enough that no product of two of them leaves int64.
constexpr int64_t kMostRowsOrColumns = int64_t{1} << 30;

}  // namespace

int64_t size_attribute(const Attributes& attributes, const char* name) {
  const int64_t size = attributes.integer(name);
  if (size >= 1 && size <= kMostRowsOrColumns) return size;
  throw OpError(std::string("attribute ") + name + ": got " + std::to_string(size) + ", expected 1 to 2^30");
}

WeightFormat format_attribute(const Attributes& attributes, const char* name) {
  const std::string format = attributes.text(name);
  std::string known;
  for (const formats::WeightFormatFacts& facts : formats::kWeightFormats) {
    if (format == facts.name) return facts.format;
    known.append(known.empty() ? "" : ", ").append(facts.name);
  }
  throw OpError(std::string("attribute ") + name + ": got \"" + format + "\", expected one of " + known);
}

MatmulKind kind_attribute(const Attributes& attributes, WeightFormat format, const char* name) {
  const std::string activations = attributes.text(name, "int16");
  if (activations != "int16" && activations != "int8") {
    throw OpError(std::string("attribute ") + name + ": got \"" + activations + "\", expected int16 or int8");
  }
  const MatmulKind kind{format, activations == "int8" ? Activations::kInt8 : Activations::kInt16};
  if (kind.possible()) return kind;
  throw OpError(std::string("attribute ") + name + ": got int8 with format " + kind.facts().name +
                ", which takes int16 only");
}

void check_packed(const char* name, const Tensor& packed, WeightFormat format, int64_t n, int64_t k,
                  const std::string& sizes) {
  const MatmulShape shape{0, static_cast<size_t>(n), static_cast<size_t>(k)};
  const Shape expected{static_cast<int64_t>(shape.row_tiles()), static_cast<int64_t>(shape.row_tile_bytes(format))};
  if (!(packed.shape == expected)) throw_shape(name, packed.shape, expected.text() + " for " + sizes);
}

PackedMatrix::PackedMatrix(const Attributes& attributes)
    : k(size_attribute(attributes, "K")),
      n(size_attribute(attributes, "N")),
      format(format_attribute(attributes, "format")) {}

void PackedMatrix::check(const Tensor& b) const {
  check_packed("B", b, format, n, k, "N = " + std::to_string(n) + ", K = " + std::to_string(k));
}

}  // namespace mxspec
