#include "runtime/ops/kernels/isa.h"

#include <cstdlib>
#include <iterator>

namespace mxspec {

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Vnni:
      return "avx512vnni";
    case Isa::kNeon:
      return "neon";
  }
  return "unknown";
}

bool isa_available(Isa isa) {
#if defined(__x86_64__)
  // These ask the operating system too (XGETBV). The extensions are those that CMakeLists.txt compiles the files for.
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    case Isa::kAvx512:
      return isa_available(Isa::kAvx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    case Isa::kAvx512Vnni:
      return isa_available(Isa::kAvx512) && __builtin_cpu_supports("avx512vnni");
    case Isa::kNeon:
      return false;
  }
  return false;
#elif defined(__aarch64__)
  return isa == Isa::kScalar || isa == Isa::kNeon;
#else
  return isa == Isa::kScalar;
#endif
}

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
