#include "formats/native/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include <cstdlib>
#include <iterator>

namespace mxspec {

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvxVnni:
      return "avxvnni";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Vnni:
      return "avx512vnni";
    case Isa::kAvx512Vbmi:
      return "avx512vbmi";
    case Isa::kNeon:
      return "neon";
    case Isa::kNeonDot:
      return "neondot";
  }
  return "unknown";
}

#if defined(__x86_64__)
// GCC 12 has no name for it in __builtin_cpu_supports: leaf 7, subleaf 1, EAX bit 4.
// Asked once: a virtual machine leaves itself to answer, which takes as long as a small product.
bool has_avx_vnni() {
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return isa_available(Isa::kAvx2) && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1) != 0;
  }();
  return has;
}

bool isa_available(Isa isa) {
  // These ask the operating system too (XGETBV). The extensions are those that CMakeLists.txt compiles the files for.
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    case Isa::kAvxVnni:
      return has_avx_vnni() || isa_available(Isa::kAvx512Vnni);
    case Isa::kAvx512:
      return isa_available(Isa::kAvx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    case Isa::kAvx512Vnni:
      return isa_available(Isa::kAvx512) && __builtin_cpu_supports("avx512vnni");
    case Isa::kAvx512Vbmi:
      return isa_available(Isa::kAvx512Vnni) && __builtin_cpu_supports("avx512vbmi");
    default:
      return false;
  }
}
#elif defined(__aarch64__)
bool has_avx_vnni() { return false; }

bool isa_available(Isa isa) {
  constexpr unsigned long kDotProducts = 1ul << 20;  // HWCAP_ASIMDDP
  if (isa == Isa::kNeonDot) return (getauxval(AT_HWCAP) & kDotProducts) != 0;
  return isa == Isa::kScalar || isa == Isa::kNeon;
}
#else
bool has_avx_vnni() { return false; }

bool isa_available(Isa isa) { return isa == Isa::kScalar; }
#endif

IsaChoice choose_isa(std::string_view wanted) {
  std::string known;
  for (size_t i = std::size(kAllIsas); i-- > 0;) {
    const Isa isa = kAllIsas[i];
    if (wanted.empty() ? isa_available(isa) : wanted == isa_name(isa)) {
      if (isa_available(isa)) return {isa, ""};
      return {isa, "MXSPEC_ISA: this machine does not have " + std::string(wanted) + "; unset it, or use scalar"};
    }
    known = isa_name(isa) + std::string(known.empty() ? "" : ", ") + known;
  }
  return {Isa::kScalar, "MXSPEC_ISA: got " + std::string(wanted) + ", expected one of " + known};
}

const IsaChoice& chosen_isa() {
  static const IsaChoice choice = [] {
    const char* wanted = std::getenv("MXSPEC_ISA");
    return choose_isa(wanted == nullptr ? "" : wanted);
  }();
  return choice;
}

}  // namespace mxspec
