#include "runtime/ops/packed_matrix.h"

#include "runtime/ops/checks.h"

namespace mxspec {
namespace {

// Far beyond any model, and small enough that no product of two of them leaves int64.
constexpr int64_t kMostRowsOrColumns = int64_t{1} << 30;

int64_t size_attribute(const Attributes& attributes, const char* name) {
  const int64_t size = attributes.integer(name);
  if (size >= 1 && size <= kMostRowsOrColumns) return size;
  throw OpError(std::string("attribute ") + name + ": got " + std::to_string(size) + ", expected 1 to 2^30");
}

WeightFormat format_attribute(const Attributes& attributes) {
  const std::string format = attributes.text("format");
  std::string known;
  for (int id = 0; id < formats::kWeightFormatCount; ++id) {
    if (format == formats::kWeightFormats[id].name) return static_cast<WeightFormat>(id);
    known.append(id == 0 ? "" : ", ").append(formats::kWeightFormats[id].name);
  }
  throw OpError("attribute format: got \"" + format + "\", expected one of " + known);
}

}  // namespace

PackedMatrix::PackedMatrix(const Attributes& attributes)
    : k(size_attribute(attributes, "K")), n(size_attribute(attributes, "N")), format(format_attribute(attributes)) {}

void PackedMatrix::check(const Tensor& b) const {
  const Shape packed{static_cast<int64_t>(shape(0).row_tiles()), static_cast<int64_t>(row_tile_bytes())};
  if (!(b.shape == packed)) {
    throw_shape("B", b.shape, packed.text() + " for N = " + std::to_string(n) + ", K = " + std::to_string(k));
  }
}

}  // namespace mxspec
