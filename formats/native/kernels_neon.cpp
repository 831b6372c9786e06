#include "formats/native/kernels.h"

#if defined(__aarch64__)
#define MXSPEC_LANES 4
#include "formats/native/kernels_simd.h"

namespace mxspec::formats {
const Kernels* neon_kernels() {
  static constexpr Kernels kernels{"neon", load, quantize, pack, pack_half};
  return &kernels;
}
}  // namespace mxspec::formats
#else
namespace mxspec::formats {
const Kernels* neon_kernels() { return nullptr; }
}  // namespace mxspec::formats
#endif
