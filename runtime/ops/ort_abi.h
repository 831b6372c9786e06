// The slice of ONNX Runtime's C ABI that this custom-op library uses.
//
// The Python wheel ships no headers. OrtApi is a table of function pointers that only grows at its end, so a table that
// names just our slots, each held to its index by a static_assert, works with every runtime of kOrtApiVersion or later.
// Slot numbers and OrtCustomOp's offsets are those of onnxruntime_c_api.h, ORT_API_VERSION 29.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// KernelContext_ParallelFor came with 17, the in-place and alias members of OrtCustomOp with 18.
inline constexpr uint32_t kOrtApiVersion = 18;

struct OrtStatus;
struct OrtValue;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtTensorTypeAndShapeInfo;
struct OrtShapeInferContext;
struct OrtCustomOp;

enum OrtErrorCode : int { ORT_OK = 0, ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2, ORT_RUNTIME_EXCEPTION = 6 };
enum OrtCharacteristic : int { ORT_REQUIRED = 0, ORT_OPTIONAL = 1, ORT_VARIADIC = 2 };

using OrtUnusedSlot = void (*)();
using OrtParallelBody = void (*)(void* user, size_t index);

// Every function returns a status, nullptr meaning success, unless its type says otherwise.
struct OrtApi {
  OrtStatus* (*CreateStatus)(OrtErrorCode, const char* message);
  OrtUnusedSlot unused_1;
  const char* (*GetErrorMessage)(const OrtStatus*);
  OrtUnusedSlot unused_3[23];
  OrtStatus* (*CreateCustomOpDomain)(const char* domain, OrtCustomOpDomain** out);
  OrtStatus* (*CustomOpDomain_Add)(OrtCustomOpDomain*, const OrtCustomOp*);  // the op must outlive the domain
  OrtStatus* (*AddCustomOpDomain)(OrtSessionOptions*, OrtCustomOpDomain*);
  OrtUnusedSlot unused_29[22];
  OrtStatus* (*GetTensorMutableData)(OrtValue*, void** out);
  OrtUnusedSlot unused_52[8];
  OrtStatus* (*GetTensorElementType)(const OrtTensorTypeAndShapeInfo*, int* out);
  OrtStatus* (*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo*, size_t* out);
  OrtStatus* (*GetDimensions)(const OrtTensorTypeAndShapeInfo*, int64_t* values, size_t count);
  OrtUnusedSlot unused_63[2];
  OrtStatus* (*GetTensorTypeAndShape)(const OrtValue*, OrtTensorTypeAndShapeInfo** out);
  OrtUnusedSlot unused_66[19];
  OrtStatus* (*KernelInfoGetAttribute_float)(const OrtKernelInfo*, const char* name, float* out);
  OrtStatus* (*KernelInfoGetAttribute_int64)(const OrtKernelInfo*, const char* name, int64_t* out);
  OrtStatus* (*KernelInfoGetAttribute_string)(const OrtKernelInfo*, const char* name, char* out, size_t* size);
  OrtStatus* (*KernelContext_GetInputCount)(const OrtKernelContext*, size_t* out);
  OrtStatus* (*KernelContext_GetOutputCount)(const OrtKernelContext*, size_t* out);
  OrtStatus* (*KernelContext_GetInput)(const OrtKernelContext*, size_t index, const OrtValue** out);
  OrtStatus* (*KernelContext_GetOutput)(OrtKernelContext*, size_t index, const int64_t* dims, size_t dim_count,
                                        OrtValue** out);
  OrtUnusedSlot unused_92;
  void (*ReleaseStatus)(OrtStatus*);
  OrtUnusedSlot unused_94[5];
  void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo*);
  OrtUnusedSlot unused_100;
  void (*ReleaseCustomOpDomain)(OrtCustomOpDomain*);
  OrtUnusedSlot unused_102[172];
  // num_batch 0 hands out the indices one by one, as threads of the session's pool become free.
  OrtStatus* (*KernelContext_ParallelFor)(const OrtKernelContext*, OrtParallelBody, size_t total, size_t num_batch,
                                          void* user);
};

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);  // nullptr where the runtime is older than that
  const char* (*GetVersionString)();
};

struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  int (*GetInputType)(const OrtCustomOp*, size_t index);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  int (*GetOutputType)(const OrtCustomOp*, size_t index);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void* kernel, OrtKernelContext*);
  void (*KernelDestroy)(void* kernel);
  int (*GetInputCharacteristic)(const OrtCustomOp*, size_t index);
  int (*GetOutputCharacteristic)(const OrtCustomOp*, size_t index);
  int (*GetInputMemoryType)(const OrtCustomOp*, size_t index);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void** kernel);
  OrtStatus* (*KernelComputeV2)(void* kernel, OrtKernelContext*);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
  int (*GetStartVersion)(const OrtCustomOp*);
  int (*GetEndVersion)(const OrtCustomOp*);
  size_t (*GetMayInplace)(int** inputs, int** outputs);
  void (*ReleaseMayInplace)(int* inputs, int* outputs);
  size_t (*GetAliasMap)(int** inputs, int** outputs);
  void (*ReleaseAliasMap)(int* inputs, int* outputs);
};

}  // extern "C"

#define MXSPEC_ORT_SLOT(name, slot) static_assert(offsetof(OrtApi, name) == (slot) * sizeof(void*), #name)
MXSPEC_ORT_SLOT(CreateStatus, 0);
MXSPEC_ORT_SLOT(GetErrorMessage, 2);
MXSPEC_ORT_SLOT(CreateCustomOpDomain, 26);
MXSPEC_ORT_SLOT(CustomOpDomain_Add, 27);
MXSPEC_ORT_SLOT(AddCustomOpDomain, 28);
MXSPEC_ORT_SLOT(GetTensorMutableData, 51);
MXSPEC_ORT_SLOT(GetTensorElementType, 60);
MXSPEC_ORT_SLOT(GetDimensionsCount, 61);
MXSPEC_ORT_SLOT(GetDimensions, 62);
MXSPEC_ORT_SLOT(GetTensorTypeAndShape, 65);
MXSPEC_ORT_SLOT(KernelInfoGetAttribute_float, 85);
MXSPEC_ORT_SLOT(KernelInfoGetAttribute_int64, 86);
MXSPEC_ORT_SLOT(KernelInfoGetAttribute_string, 87);
MXSPEC_ORT_SLOT(KernelContext_GetInputCount, 88);
MXSPEC_ORT_SLOT(KernelContext_GetOutputCount, 89);
MXSPEC_ORT_SLOT(KernelContext_GetInput, 90);
MXSPEC_ORT_SLOT(KernelContext_GetOutput, 91);
MXSPEC_ORT_SLOT(ReleaseStatus, 93);
MXSPEC_ORT_SLOT(ReleaseTensorTypeAndShapeInfo, 99);
MXSPEC_ORT_SLOT(ReleaseCustomOpDomain, 101);
MXSPEC_ORT_SLOT(KernelContext_ParallelFor, 274);
#undef MXSPEC_ORT_SLOT

static_assert(sizeof(void*) == 8, "the offsets below are those of a 64-bit build");
static_assert(offsetof(OrtCustomOp, CreateKernel) == 8);
static_assert(offsetof(OrtCustomOp, GetInputType) == 32);
static_assert(offsetof(OrtCustomOp, GetOutputType) == 48);
static_assert(offsetof(OrtCustomOp, KernelDestroy) == 72);
static_assert(offsetof(OrtCustomOp, GetInputCharacteristic) == 80);
static_assert(offsetof(OrtCustomOp, GetInputMemoryType) == 96);
static_assert(offsetof(OrtCustomOp, GetVariadicOutputHomogeneity) == 128);
static_assert(offsetof(OrtCustomOp, CreateKernelV2) == 136);
static_assert(offsetof(OrtCustomOp, KernelComputeV2) == 144);
static_assert(offsetof(OrtCustomOp, InferOutputShapeFn) == 152);
static_assert(offsetof(OrtCustomOp, GetStartVersion) == 160);
static_assert(offsetof(OrtCustomOp, GetMayInplace) == 176);
static_assert(offsetof(OrtCustomOp, GetAliasMap) == 192);
static_assert(sizeof(OrtCustomOp) == 208);
