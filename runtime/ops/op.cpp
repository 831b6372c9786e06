#include "runtime/ops/op.h"

namespace mxspec {

void require_ok(const OrtApi& api, OrtStatus* status) {
  if (status == nullptr) return;
  const std::string message = api.GetErrorMessage(status);
  api.ReleaseStatus(status);
  throw std::runtime_error(message);
}

namespace {

// True where the call succeeded; a failure means that the attribute is absent or of another type.
bool found(const OrtApi& api, OrtStatus* status) {
  if (status == nullptr) return true;
  api.ReleaseStatus(status);
  return false;
}

[[noreturn]] void missing(const char* name, const char* expected) {
  throw OpError(std::string("attribute ") + name + ": missing, or not " + expected);
}

Tensor view(const OrtApi& api, const OrtValue& value, const std::string& name) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  require_ok(api, api.GetTensorTypeAndShape(&value, &info));
  Tensor tensor;
  int type = 0;
  size_t rank = 0;
  OrtStatus* status = api.GetTensorElementType(info, &type);
  if (status == nullptr) status = api.GetDimensionsCount(info, &rank);
  if (status == nullptr && rank <= Shape::kMaxRank) {
    tensor.shape = Shape(rank);
    status = api.GetDimensions(info, tensor.shape.dims(), rank);
  }
  api.ReleaseTensorTypeAndShapeInfo(info);
  require_ok(api, status);
  if (rank > Shape::kMaxRank) throw OpError(name + ": got " + std::to_string(rank) + " dimensions, at most 8 work");
  tensor.type = static_cast<ElementType>(type);
  require_ok(api, api.GetTensorMutableData(const_cast<OrtValue*>(&value), &tensor.data));
  return tensor;
}

}  // namespace

float Attributes::number(const char* name) const {
  float value = 0;
  if (!found(api_, api_.KernelInfoGetAttribute_float(&info_, name, &value))) missing(name, "a float");
  return value;
}

int64_t Attributes::integer(const char* name) const {
  int64_t value = 0;
  if (!found(api_, api_.KernelInfoGetAttribute_int64(&info_, name, &value))) missing(name, "an integer");
  return value;
}

std::string Attributes::text(const char* name) const {
  size_t size = 0;  // the first call asks for the size, which counts the closing zero
  if (!found(api_, api_.KernelInfoGetAttribute_string(&info_, name, nullptr, &size))) missing(name, "a string");
  std::string value(size, '\0');
  require_ok(api_, api_.KernelInfoGetAttribute_string(&info_, name, value.data(), &size));
  value.resize(size == 0 ? 0 : size - 1);
  return value;
}

bool Attributes::has(const char* name) const {
  float number = 0;
  int64_t integer = 0;
  size_t size = 0;
  return found(api_, api_.KernelInfoGetAttribute_float(&info_, name, &number)) ||
         found(api_, api_.KernelInfoGetAttribute_int64(&info_, name, &integer)) ||
         found(api_, api_.KernelInfoGetAttribute_string(&info_, name, nullptr, &size));
}

float Attributes::number(const char* name, float otherwise) const { return has(name) ? number(name) : otherwise; }

int64_t Attributes::integer(const char* name, int64_t otherwise) const { return has(name) ? integer(name) : otherwise; }

std::string Attributes::text(const char* name, const char* otherwise) const {
  return has(name) ? text(name) : otherwise;
}

std::optional<Tensor> Context::optional_input(size_t index) const {
  size_t count = 0;
  require_ok(api_, api_.KernelContext_GetInputCount(&context_, &count));
  const OrtValue* value = nullptr;
  if (index < count) require_ok(api_, api_.KernelContext_GetInput(&context_, index, &value));
  if (value == nullptr) return std::nullopt;
  return view(api_, *value, inputs_[index].name);
}

Tensor Context::input(size_t index) const {
  std::optional<Tensor> tensor = optional_input(index);
  if (!tensor) throw OpError(std::string(inputs_[index].name) + ": missing");
  return *tensor;
}

Tensor Context::output(size_t index, ElementType type, const Shape& shape) {
  OrtValue* value = nullptr;
  require_ok(api_, api_.KernelContext_GetOutput(&context_, index, shape.dims(), shape.rank(), &value));
  Tensor tensor{type, shape, nullptr};
  if (value != nullptr) require_ok(api_, api_.GetTensorMutableData(value, &tensor.data));
  return tensor;
}

}  // namespace mxspec
