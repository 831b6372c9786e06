// Glue between one operator class and ONNX Runtime.
//
// An operator is a class like this; custom_op<Op>() makes the C table of it:
//
//   struct Scale {
//     static constexpr const char* kName = "Scale";
//     static constexpr Parameter kInputs[] = {{"x", ElementType::kFloat32}};
//     static constexpr Parameter kOutputs[] = {{"y", ElementType::kFloat32}};
//     explicit Scale(const Attributes& attributes) : factor(attributes.number("factor")) {}
//     void compute(Context& context) const;   // throws OpError
//     float factor;
//   };
//
// Exceptions end here: they become an OrtStatus, its text led by the operator's name.
#pragma once

#include <algorithm>
#include <exception>
#include <iterator>
#include <optional>
#include <string>
#include <type_traits>

#include "runtime/ops/kernels/parallel_for.h"
#include "runtime/ops/kernels/thread_pool.h"
#include "runtime/ops/ort_abi.h"
#include "runtime/ops/tensor.h"

namespace mxspec {

// The version of our domain that a graph must import; one of another version is refused when it is loaded. With 2 came
// cosines and sines of one column a pair (RotaryEmbedding, QkvAttention).
inline constexpr int kOpset = 2;

// All parameters of ElementType::kAny have one and the same type in a node; ONNX Runtime checks that at load.
struct Parameter {
  const char* name;
  ElementType type;
  bool optional = false;
};

// Throws the error of a status, and releases the status.
void require_ok(const OrtApi& api, OrtStatus* status);

// The attributes of a node, read once when its kernel is made. One of another type throws, and so does an absent one
// that has no default.
class Attributes {
 public:
  Attributes(const OrtApi& api, const OrtKernelInfo& info) : api_(api), info_(info) {}

  float number(const char* name) const;
  int64_t integer(const char* name) const;
  std::string text(const char* name) const;
  float number(const char* name, float otherwise) const;
  int64_t integer(const char* name, int64_t otherwise) const;
  std::string text(const char* name, const char* otherwise) const;

 private:
  bool has(const char* name) const;

  const OrtApi& api_;
  const OrtKernelInfo& info_;
};

// One call of a kernel.
class Context {
 public:
  Context(const OrtApi& api, OrtKernelContext& context, const Parameter* inputs, size_t input_count)
      : api_(api), context_(context), inputs_(inputs), input_count_(input_count) {}

  // A declared input, its element type checked by ONNX Runtime; nullopt for an optional input that is absent.
  std::optional<Tensor> optional_input(size_t index) const;
  Tensor input(size_t index) const;
  // Allocates the output, or gives the buffer it is bound to.
  Tensor output(size_t index, ElementType type, const Shape& shape);

  // body(index) for each index < total, on the process's threads, in any order. Throws what a body threw.
  template <class Body>
  void parallel_for(size_t total, const Body& body) const {
    shared_threads()(total, body);
  }
  // body(row) for each row of `row_values` values, about values_per_task of them a task: a smaller task costs less than
  // handing it to another thread.
  template <class Body>
  void parallel_rows(int64_t rows, int64_t row_values, int64_t values_per_task, const Body& body) const {
    const int64_t rows_per_task = std::max<int64_t>(1, values_per_task / std::max<int64_t>(1, row_values));
    parallel_for(static_cast<size_t>((rows + rows_per_task - 1) / rows_per_task), [&](size_t task) {
      const int64_t first = static_cast<int64_t>(task) * rows_per_task;
      for (int64_t row = first; row < std::min(rows, first + rows_per_task); ++row) body(row);
    });
  }

 private:
  const OrtApi& api_;
  OrtKernelContext& context_;
  const Parameter* inputs_;
  size_t input_count_;
};

namespace detail {

template <class Op>
struct Kernel {
  const OrtApi& api;
  Op op;
};

// Runs body and turns an exception into a status.
template <class Op, class Body>
OrtStatus* guarded(const OrtApi& api, Body&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const OpError& error) {
    return api.CreateStatus(ORT_INVALID_ARGUMENT, (std::string("mxspec.") + Op::kName + ": " + error.what()).c_str());
  } catch (const std::exception& error) {
    return api.CreateStatus(ORT_RUNTIME_EXCEPTION, (std::string("mxspec.") + Op::kName + ": " + error.what()).c_str());
  }
}

template <class Op>
OrtStatus* create_kernel(const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
  return guarded<Op>(*api, [&] { *kernel = new Kernel<Op>{*api, Op(Attributes(*api, *info))}; });
}

template <class Op>
OrtStatus* compute(void* kernel, OrtKernelContext* ort_context) {
  const auto& self = *static_cast<Kernel<Op>*>(kernel);
  return guarded<Op>(self.api, [&] {
    Context context(self.api, *ort_context, Op::kInputs, std::size(Op::kInputs));
    self.op.compute(context);
  });
}

}  // namespace detail

template <class Op>
const OrtCustomOp* custom_op() {
  static const OrtCustomOp op = [] {
    OrtCustomOp table = {};
    table.version = kOrtApiVersion;
    table.GetName = [](const OrtCustomOp*) { return Op::kName; };
    table.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
    table.GetInputTypeCount = [](const OrtCustomOp*) { return std::size(Op::kInputs); };
    table.GetInputType = [](const OrtCustomOp*, size_t i) { return static_cast<int>(Op::kInputs[i].type); };
    table.GetInputCharacteristic = [](const OrtCustomOp*, size_t i) -> int {
      return Op::kInputs[i].optional ? ORT_OPTIONAL : ORT_REQUIRED;
    };
    table.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return 0; };
    table.GetOutputTypeCount = [](const OrtCustomOp*) { return std::size(Op::kOutputs); };
    table.GetOutputType = [](const OrtCustomOp*, size_t i) { return static_cast<int>(Op::kOutputs[i].type); };
    table.GetOutputCharacteristic = [](const OrtCustomOp*, size_t) -> int { return ORT_REQUIRED; };
    table.GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
    table.GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 0; };
    table.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
    table.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
    table.CreateKernelV2 = detail::create_kernel<Op>;
    table.KernelComputeV2 = detail::compute<Op>;
    table.KernelDestroy = [](void* kernel) { delete static_cast<detail::Kernel<Op>*>(kernel); };
    table.GetStartVersion = [](const OrtCustomOp*) { return kOpset; };
    table.GetEndVersion = [](const OrtCustomOp*) { return kOpset; };
    table.GetMayInplace = [](int**, int**) { return size_t{0}; };
    table.ReleaseMayInplace = [](int*, int*) {};
    table.GetAliasMap = [](int**, int**) { return size_t{0}; };
    table.ReleaseAliasMap = [](int*, int*) {};
    return table;
  }();
  return &op;
}

}  // namespace mxspec
