// The entry point that SessionOptions.register_custom_ops_library() calls.

#include <string>
#include <vector>

#include "formats/native/isa.h"
#include "runtime/ops/attention/attention_op.h"
#include "runtime/ops/attention/cross_attention_op.h"
#include "runtime/ops/attention/encoder_attention_op.h"
#include "runtime/ops/attention/qkv_attention_op.h"
#include "runtime/ops/attention/store_key_value_op.h"
#include "runtime/ops/c_border.h"
#include "runtime/ops/experts_counts.h"
#include "runtime/ops/experts_op.h"
#include "runtime/ops/gated_op.h"
#include "runtime/ops/gather_op.h"
#include "runtime/ops/kernels/thread_pool.h"
#include "runtime/ops/matmul_op.h"
#include "runtime/ops/norm_op.h"
#include "runtime/ops/op.h"
#include "runtime/ops/rotary_op.h"

namespace mxspec {
namespace {

constexpr const char* kDomain = "mxspec";

template <size_t kCount>
std::string names_of(const Parameter (&parameters)[kCount]) {
  std::string text;
  for (const Parameter& parameter : parameters) {
    text.append(text.empty() ? "" : ", ").append(parameter.name).append(parameter.optional ? "?" : "");
  }
  return text;
}

// "Name(input, optional?) -> (output)"
template <class Op>
std::string signature() {
  return std::string(Op::kName) + "(" + names_of(Op::kInputs) + ") -> (" + names_of(Op::kOutputs) + ")";
}

struct Registered {
  const OrtCustomOp* op;
  std::string signature;
};

template <class... Ops>
std::vector<Registered> registered() {
  return {{custom_op<Ops>(), signature<Ops>()}...};
}

const std::vector<Registered>& operators() {
  static const std::vector<Registered> all =
      registered<AddLayerNormOp, AddRmsNormOp, AttentionOp<ElementType::kFloat16>, AttentionOp<ElementType::kFloat32>,
                 AttentionOp<ElementType::kUint8>, CrossAttentionOp<ElementType::kFloat16>,
                 CrossAttentionOp<ElementType::kFloat32>, CrossAttentionOp<ElementType::kUint8>, EncoderAttentionOp,
                 GeGluOp, PackedExpertsOp, PackedGatherOp, PackedMatMulOp, QkvAttentionOp<ElementType::kFloat16>,
                 QkvAttentionOp<ElementType::kFloat32>, QkvAttentionOp<ElementType::kUint8>, RotaryEmbeddingOp,
                 StoreKeyValueOp<ElementType::kFloat16>, StoreKeyValueOp<ElementType::kFloat32>,
                 StoreKeyValueOp<ElementType::kUint8>, SwiGluOp>();
  return all;
}

OrtStatus* add_domain(OrtSessionOptions* options, const OrtApi& api) {
  OrtCustomOpDomain* domain = nullptr;  // the session options keep it from AddCustomOpDomain on
  OrtStatus* status = api.CreateCustomOpDomain(kDomain, &domain);
  if (status != nullptr) return status;
  for (const Registered& entry : operators()) {
    if (status == nullptr) status = api.CustomOpDomain_Add(domain, entry.op);
  }
  if (status == nullptr) status = api.AddCustomOpDomain(options, domain);
  if (status != nullptr) api.ReleaseCustomOpDomain(domain);
  return status;
}

}  // namespace
}  // namespace mxspec

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                               const OrtApiBase* base) {
  // CreateStatus is the first function of every version, so the oldest table can report an error.
  const OrtApi* oldest = base->GetApi(1);
  try {
    const OrtApi* api = base->GetApi(kOrtApiVersion);
    if (api != nullptr) return mxspec::add_domain(options, *api);
    const std::string message = "mxspec: this ONNX Runtime is version " + std::string(base->GetVersionString()) +
                                ", the operators need 1." + std::to_string(kOrtApiVersion) + " or later";
    return oldest->CreateStatus(ORT_FAIL, message.c_str());
  } catch (const std::exception& error) {
    return oldest->CreateStatus(ORT_FAIL, error.what());
  }
}

// Sets the number of threads, the calling one included, that the operators of this process use. Returns whether the
// system gave that many; if not, there are as many as before, or as many as it still gives.
extern "C" __attribute__((visibility("default"))) bool mxspec_set_threads(size_t threads) {
  return mxspec::no_throw(false, [&] { return mxspec::ThreadPool::shared().resize(threads); });
}

extern "C" __attribute__((visibility("default"))) size_t mxspec_threads() {
  return mxspec::no_throw(size_t{1}, [] { return mxspec::ThreadPool::shared().threads(); });
}

// The name of the instruction set that the operators of this process use; nullptr where MXSPEC_ISA names one that the
// machine lacks.
extern "C" __attribute__((visibility("default"))) const char* mxspec_isa() {
  return mxspec::no_throw<const char*>(nullptr, [] {
    const mxspec::IsaChoice& choice = mxspec::chosen_isa();
    return choice.error.empty() ? mxspec::isa_name(choice.isa) : nullptr;
  });
}

// The instruction sets of this machine, by the names of MXSPEC_ISA, the slowest first, with spaces between.
extern "C" __attribute__((visibility("default"))) const char* mxspec_available_isas() {
  return mxspec::no_throw<const char*>("scalar", [] {
    static const std::string names = [] {
      std::string text;
      for (const mxspec::Isa isa : mxspec::kAllIsas) {
        if (mxspec::isa_available(isa)) text.append(text.empty() ? "" : " ").append(mxspec::isa_name(isa));
      }
      return text;
    }();
    return names.c_str();
  });
}

// Calls of PackedExperts in this process so far, their rows, and the distinct experts of each call, added up.
extern "C" __attribute__((visibility("default"))) void mxspec_experts_counts(uint64_t* calls, uint64_t* rows,
                                                                             uint64_t* experts) {
  const mxspec::ExpertsCounts& counts = mxspec::ExpertsCounts::of_process();
  *calls = counts.calls.load(std::memory_order_relaxed);
  *rows = counts.rows.load(std::memory_order_relaxed);
  *experts = counts.experts.load(std::memory_order_relaxed);
}

// The domain and its version, then the signature of every registered operator, a line each, for the comparison with
// compile/graph/operators.py.
extern "C" __attribute__((visibility("default"))) const char* mxspec_ops_signatures() {
  return mxspec::no_throw<const char*>("", [] {
    static const std::string text = [] {
      std::string lines = std::string(mxspec::kDomain) + " " + std::to_string(mxspec::kOpset);
      for (const mxspec::Registered& entry : mxspec::operators()) lines.append("\n").append(entry.signature);
      return lines;
    }();
    return text.c_str();
  });
}

// formats::weight_formats_text(), for the comparison with formats/weight_format.py.
extern "C" __attribute__((visibility("default"))) const char* mxspec_ops_weight_formats() {
  return mxspec::no_throw<const char*>("", [] {
    static const std::string text = mxspec::formats::weight_formats_text();
    return text.c_str();
  });
}
