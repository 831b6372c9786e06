// Which instruction set serves a call.
#include <cstdlib>

#include "formats/native/isa.h"
#include "formats/native/kernels.h"

namespace mxspec::formats {
namespace {

// The codec's kernels differ by the width of the registers alone.
const Kernels* kernels_of(Isa isa) {
#if defined(__x86_64__)
  if (vector_lanes(isa) == 16) return &kKernelsAvx512;
  if (vector_lanes(isa) == 8) return &kKernelsAvx2;
#elif defined(__aarch64__)
  if (vector_lanes(isa) == 4) return &kKernelsNeon;
#endif
  return &kKernelsScalar;
}

}  // namespace

int32_t find_kernels(const char* wanted, const Kernels** kernels) {
  const IsaChoice choice = choose_isa(wanted ? wanted : "");
  if (choice.error.empty()) {
    *kernels = kernels_of(choice.isa);
    return MXSPEC_OK;
  }
  return wanted == std::string_view(isa_name(choice.isa)) ? MXSPEC_UNSUPPORTED_ISA : MXSPEC_UNKNOWN_ISA;
}

int32_t choose_kernels(const Kernels** kernels) { return find_kernels(std::getenv("MXSPEC_ISA"), kernels); }

}  // namespace mxspec::formats
