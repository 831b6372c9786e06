// Which kernels an instruction set multiplies with.
#include "runtime/ops/kernels/matmul/matmul_kernels.h"

namespace mxspec {
namespace {

constexpr MxKernelsByBits kNone = {};
constexpr MatmulKernels kScalar = {kQuantiseScalar, kInt16Scalar, kNone, kFp16Scalar};
#if defined(__x86_64__)
constexpr MatmulKernels kAvx2 = {kQuantiseAvx2, kInt16Avx2, kInt8Avx2, kFp16Avx2};
constexpr MatmulKernels kAvxVnni = {kQuantiseAvx2, kInt16AvxVnni, kInt8AvxVnni, kFp16Avx2};
constexpr MatmulKernels kAvx512 = {kQuantiseAvx512, kInt16Avx512, kInt8Avx512, kFp16Avx512};
constexpr MatmulKernels kAvx512Vnni = {kQuantiseAvx512, kInt16Avx512Vnni, kInt8Avx512Vnni, kFp16Avx512};
constexpr MatmulKernels kAvx512Vbmi = {kQuantiseAvx512, kInt16Avx512Vnni, kInt8Avx512Vbmi, kFp16Avx512};
#elif defined(__aarch64__)
constexpr MatmulKernels kNeon = {kQuantiseNeon, kInt16Neon, kNone, kFp16Neon};
constexpr MatmulKernels kNeonDot = {kQuantiseNeon, kInt16Neon, kInt8NeonDot, kFp16Neon};
#endif

}  // namespace

#if defined(__x86_64__)
const MatmulKernels& amx_kernels() {
  static const MxKernelsByBits kInt8 = with_amx_tiles(kInt8Avx512Vbmi);
  static const MatmulKernels kTable = {kQuantiseAvx512, kInt16Avx512Vnni, kInt8, kFp16Avx512};
  return kTable;
}

const MatmulKernels& avxvnni_kernels_of_avx512() {
  static constexpr MatmulKernels kTable = {kQuantiseAvx2, kInt16AvxVnniOfAvx512, kInt8AvxVnniOfAvx512, kFp16Avx2};
  return kTable;
}
#endif

const MatmulKernels& matmul_kernels([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAmx) return amx_kernels();
  if (isa == Isa::kAvx512Vbmi) return kAvx512Vbmi;
  if (isa == Isa::kAvx512Vnni) return kAvx512Vnni;
  if (isa == Isa::kAvx512) return kAvx512;
  if (isa == Isa::kAvxVnni) return has_avx_vnni() ? kAvxVnni : avxvnni_kernels_of_avx512();
  if (isa == Isa::kAvx2) return kAvx2;
#elif defined(__aarch64__)
  if (isa == Isa::kNeonDot) return kNeonDot;
  if (isa == Isa::kNeon) return kNeon;
#endif
  return kScalar;
}

}  // namespace mxspec
