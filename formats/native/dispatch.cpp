// Which instruction set serves a call.
#include <cstdlib>

#include "formats/native/isa.h"
#include "formats/native/kernels.h"

namespace mxspec::formats {
namespace {

// The codec has no use for what the dot products' instruction sets add.
const Kernels* kernels_of(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return scalar_kernels();
    case Isa::kAvx2:
    case Isa::kAvxVnni:
      return avx2_kernels();
    case Isa::kAvx512:
    case Isa::kAvx512Vnni:
    case Isa::kAvx512Vbmi:
    case Isa::kAmx:
      return avx512_kernels();
    case Isa::kNeon:
    case Isa::kNeonDot:
      return neon_kernels();
  }
  return nullptr;
}

}  // namespace

int32_t find_kernels(const char* wanted, const Kernels** kernels) {
  const IsaChoice choice = choose_isa(wanted ? wanted : "");
  if (choice.error.empty()) {
    *kernels = kernels_of(choice.isa);
    return *kernels ? MXSPEC_OK : MXSPEC_UNSUPPORTED_ISA;
  }
  return wanted == std::string_view(isa_name(choice.isa)) ? MXSPEC_UNSUPPORTED_ISA : MXSPEC_UNKNOWN_ISA;
}

int32_t choose_kernels(const Kernels** kernels) { return find_kernels(std::getenv("MXSPEC_ISA"), kernels); }

}  // namespace mxspec::formats
