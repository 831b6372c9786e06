#include "formats/native/kernels.h"

#if defined(__AVX512BW__)
#define MXSPEC_LANES 16
#include "formats/native/kernels_simd.h"

namespace mxspec::formats {
const Kernels* avx512_kernels() {
  static constexpr Kernels kernels{"avx512", load, quantize, pack, pack_half};
  return &kernels;
}
}  // namespace mxspec::formats
#else
namespace mxspec::formats {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace mxspec::formats
#endif
