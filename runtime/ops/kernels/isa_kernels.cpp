// Which kernels an instruction set has.
#include "runtime/ops/kernels/isa_kernels.h"

namespace mxspec {
namespace {

struct IsaKernels {
  const LaneKernels& lanes;
  MatmulKernels matmul;
};

constexpr MxKernelsByBits kNone = {};
constexpr IsaKernels kScalar = {kLanesScalar, {kQuantiseScalar, kInt16Scalar, kNone, kFp16Scalar}};
#if defined(__x86_64__)
constexpr IsaKernels kAvx2 = {kLanesAvx2, {kQuantiseAvx2, kInt16Avx2, kInt8Avx2, kFp16Avx2}};
constexpr IsaKernels kAvxVnni = {kLanesAvx2, {kQuantiseAvx2, kInt16AvxVnni, kInt8AvxVnni, kFp16Avx2}};
constexpr IsaKernels kAvxVnniOfAvx512 = {kLanesAvx2,
                                         {kQuantiseAvx2, kInt16AvxVnniOfAvx512, kInt8AvxVnniOfAvx512, kFp16Avx2}};
constexpr IsaKernels kAvx512 = {kLanesAvx512, {kQuantiseAvx512, kInt16Avx512, kInt8Avx512, kFp16Avx512}};
constexpr IsaKernels kAvx512Vnni = {kLanesAvx512Vnni,
                                    {kQuantiseAvx512, kInt16Avx512Vnni, kInt8Avx512Vnni, kFp16Avx512}};
constexpr IsaKernels kAvx512Vbmi = {kLanesAvx512Vnni,
                                    {kQuantiseAvx512, kInt16Avx512Vnni, kInt8Avx512Vbmi, kFp16Avx512}};

const IsaKernels& amx_kernels() {
  static const MxKernelsByBits kInt8 = with_amx_tiles(kInt8Avx512Vbmi);
  static const IsaKernels kAmx = {kLanesAvx512Vnni, {kQuantiseAvx512, kInt16Avx512Vnni, kInt8, kFp16Avx512}};
  return kAmx;
}
#elif defined(__aarch64__)
constexpr IsaKernels kNeon = {kLanesNeon, {kQuantiseNeon, kInt16Neon, kNone, kFp16Neon}};
constexpr IsaKernels kNeonDot = {kLanesNeonDot, {kQuantiseNeon, kInt16Neon, kInt8NeonDot, kFp16Neon}};
#endif

// The compiler names a set that has no case here.
const IsaKernels& kernels_of(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return kScalar;
#if defined(__x86_64__)
    case Isa::kAvx2:
      return kAvx2;
    case Isa::kAvxVnni:
      return has_avx_vnni() ? kAvxVnni : kAvxVnniOfAvx512;
    case Isa::kAvx512:
      return kAvx512;
    case Isa::kAvx512Vnni:
      return kAvx512Vnni;
    case Isa::kAvx512Vbmi:
      return kAvx512Vbmi;
    case Isa::kAmx:
      return amx_kernels();
#else
    case Isa::kAvx2:
    case Isa::kAvxVnni:
    case Isa::kAvx512:
    case Isa::kAvx512Vnni:
    case Isa::kAvx512Vbmi:
    case Isa::kAmx:
      break;
#endif
#if defined(__aarch64__)
    case Isa::kNeon:
      return kNeon;
    case Isa::kNeonDot:
      return kNeonDot;
#else
    case Isa::kNeon:
    case Isa::kNeonDot:
      break;
#endif
  }
  return kScalar;  // of a set that this machine cannot have
}

}  // namespace

const LaneKernels& lane_kernels(Isa isa) { return kernels_of(isa).lanes; }

const MatmulKernels& matmul_kernels(Isa isa) { return kernels_of(isa).matmul; }

#if defined(__x86_64__)
const MatmulKernels& avxvnni_kernels_of_avx512() { return kAvxVnniOfAvx512.matmul; }
#endif

}  // namespace mxspec
