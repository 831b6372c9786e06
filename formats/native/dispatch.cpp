// Which instruction set serves a call.
#include <cstdlib>
#include <string_view>

#include "formats/native/kernels.h"

namespace mxspec::formats {
namespace {

// The extensions are those that CMakeLists.txt compiles the files for.
#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
#endif

}  // namespace

int32_t find_kernels(const char* wanted, const Kernels** kernels) {
  const Kernels* avx2 = has_avx2() ? avx2_kernels() : nullptr;
  const Kernels* avx512 = has_avx512() ? avx512_kernels() : nullptr;
  const Kernels* neon = neon_kernels();  // of every aarch64
  const std::string_view isa = wanted ? wanted : "";
  if (isa.empty())
    *kernels = avx512 ? avx512 : avx2 ? avx2 : neon ? neon : scalar_kernels();
  else if (isa == "scalar")
    *kernels = scalar_kernels();
  else if (isa == "avx2")
    *kernels = avx2;
  else if (isa == "avx512" || isa == "avx512vnni")  // the codec has no use for VNNI
    *kernels = avx512;
  else if (isa == "neon")
    *kernels = neon;
  else
    return MXSPEC_UNKNOWN_ISA;
  return *kernels ? MXSPEC_OK : MXSPEC_UNSUPPORTED_ISA;
}

int32_t choose_kernels(const Kernels** kernels) { return find_kernels(std::getenv("MXSPEC_ISA"), kernels); }

}  // namespace mxspec::formats
