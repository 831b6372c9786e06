#include "formats/native/kernels.h"

#if defined(__AVX2__)
#define MXSPEC_LANES 8
#include "formats/native/kernels_simd.h"

namespace mxspec::formats {
const Kernels* avx2_kernels() {
  static constexpr Kernels kernels{"avx2", load, quantize, pack, pack_half};
  return &kernels;
}
}  // namespace mxspec::formats
#else
namespace mxspec::formats {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace mxspec::formats
#endif
