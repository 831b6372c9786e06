#include "runtime/ops/rotary_op.h"

#include "runtime/ops/checks.h"
#include "runtime/ops/kernels/rotary.h"

namespace mxspec {
namespace {

// A task has about this many values, so that handing it to another thread costs less than doing it (tens of us).
constexpr int64_t kValuesPerTask = 32768;

void check_table(const char* name, const Shape& table, const Shape& x) {
  if (table.rank() != 3 || table[0] != x[0] || table[1] != x[1] || 2 * table[2] > x[3]) {
    throw_shape(name, table, "[batch, seq, rotary / 2] with rotary at most head_size, for x " + x.text());
  }
}

}  // namespace

bool read_switch(const Attributes& attributes, const char* name) {
  const int64_t value = attributes.integer(name, 0);
  if (value == 0 || value == 1) return value == 1;
  throw OpError("attribute " + std::string(name) + ": got " + std::to_string(value) + ", expected 0 or 1");
}

RotaryEmbeddingOp::RotaryEmbeddingOp(const Attributes& attributes) : pairs_(read_switch(attributes, "pairs")) {}

void check_rotary_tables(const Shape& cos, const Shape& sin, const Shape& x) {
  check_table("cos", cos, x);
  check_table("sin", sin, x);
  if (!(cos == sin)) throw OpError("cos " + cos.text() + " and sin " + sin.text() + " differ");
}

void RotaryEmbeddingOp::compute(Context& context) const {
  const Tensor x = context.input(0);
  const Tensor cos = context.input(1);
  const Tensor sin = context.input(2);
  if (x.shape.rank() != 4) throw_shape("x", x.shape, "[batch, seq, heads, head_size]");
  check_rotary_tables(cos.shape, sin.shape, x.shape);
  const Tensor out = context.output(0, ElementType::kFloat32, x.shape);

  const int64_t heads = x.shape[2], head_size = x.shape[3], half = cos.shape[2];
  const int64_t rows = x.shape[0] * x.shape[1], row_values = heads * head_size;
  if (rows == 0 || row_values == 0) return;
  context.parallel_rows(rows, row_values, kValuesPerTask, [&](int64_t row) {
    rotate_heads(x.as<const float>() + row * row_values, cos.as<const float>() + row * half,
                 sin.as<const float>() + row * half, heads, head_size, 2 * half, pairs_,
                 out.as<float>() + row * row_values);
  });
}

}  // namespace mxspec
