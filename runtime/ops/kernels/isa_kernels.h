// The tables of the instruction sets' kernels, each defined by the file that is compiled for its set.
#pragma once

#include "runtime/ops/kernels/lanes/lane_kernels.h"
#include "runtime/ops/kernels/matmul/matmul_kernels.h"

namespace mxspec {

extern const LaneKernels kLanesScalar, kLanesAvx2, kLanesAvx512, kLanesAvx512Vnni, kLanesNeon, kLanesNeonDot;
extern const RowQuantisers kQuantiseScalar, kQuantiseAvx2, kQuantiseAvx512, kQuantiseNeon;
extern const MxKernelsByBits kInt16Scalar, kInt16Avx2, kInt16AvxVnni, kInt16AvxVnniOfAvx512, kInt16Avx512,
    kInt16Avx512Vnni, kInt16Neon;
extern const MxKernelsByBits kInt8Avx2, kInt8AvxVnni, kInt8AvxVnniOfAvx512, kInt8Avx512, kInt8Avx512Vnni,
    kInt8Avx512Vbmi, kInt8NeonDot;
extern const Fp16Kernels kFp16Scalar, kFp16Avx2, kFp16Avx512, kFp16Neon;

// Kernels of int8 rows for AVX-512 with VBMI, and for groups of more rows the tiles of AMX.
MxKernelsByBits with_amx_tiles(const MxKernelsByBits& kernels);

}  // namespace mxspec
