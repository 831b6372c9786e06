// Which instruction set serves a call.
#include <cstdlib>
#include <string_view>

#include "formats/native/kernels.h"

namespace mxspec::formats {

int32_t choose_kernels(const Kernels** kernels) {
  const char* override = std::getenv("MXSPEC_ISA");
  const std::string_view isa = override ? override : "";
  if (isa.empty()) {
    *kernels = avx512_kernels() ? avx512_kernels() : avx2_kernels() ? avx2_kernels() : scalar_kernels();
    return MXSPEC_OK;
  }
  if (isa == "scalar")
    *kernels = scalar_kernels();
  else if (isa == "avx2")
    *kernels = avx2_kernels();
  else if (isa == "avx512" || isa == "avx512vnni")  // the codec has no use for VNNI
    *kernels = avx512_kernels();
  else
    return MXSPEC_UNKNOWN_ISA;
  return *kernels ? MXSPEC_OK : MXSPEC_UNSUPPORTED_ISA;
}

}  // namespace mxspec::formats
