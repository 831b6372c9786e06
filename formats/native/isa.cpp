#include "formats/native/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include <cstdlib>
#include <iterator>

namespace mxspec {
namespace {

struct IsaFacts {
  Isa isa;
  const char* name;
  int vector_lanes;
};
constexpr IsaFacts kFacts[] = {
    {Isa::kScalar, "scalar", 1},
    {Isa::kAvx2, "avx2", 8},
    {Isa::kAvxVnni, "avxvnni", 8},
    {Isa::kAvx512, "avx512", 16},
    {Isa::kAvx512Vnni, "avx512vnni", 16},
    {Isa::kAvx512Vbmi, "avx512vbmi", 16},
    {Isa::kAmx, "amx", 16},
    {Isa::kNeon, "neon", 4},
    {Isa::kNeonDot, "neondot", 4},
};
static_assert(std::size(kFacts) == std::size(kAllIsas));
static_assert([] {
  for (size_t i = 0; i < std::size(kFacts); ++i)
    if (kFacts[i].isa != kAllIsas[i] || static_cast<size_t>(kFacts[i].isa) != i) return false;
  return true;
}());

}  // namespace

const char* isa_name(Isa isa) { return kFacts[static_cast<size_t>(isa)].name; }

int vector_lanes(Isa isa) { return kFacts[static_cast<size_t>(isa)].vector_lanes; }

#if defined(__x86_64__)
namespace {

struct Processor {
  bool avx2 = false, avx_vnni = false, avx512 = false, avx512_vnni = false, avx512_vbmi = false, amx = false;
};

// Asks Linux for the tile registers of AMX, which it keeps for the threads of a process that asked (arch_prctl(2)). It
// refuses where a signal's stack is too small for them.
bool take_tiles() {
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

// The extensions are those that CMakeLists.txt compiles the files for. Not __builtin_cpu_supports: GCC 12 has no name
// for AVX-VNNI in it, and in what zig links it finds nothing.
Processor ask_processor() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) || !(c & bit_FMA) || !(c & bit_F16C)) return {};
  unsigned kept = 0, high = 0;  // XCR0: the registers that the operating system keeps for each thread
  __asm__("xgetbv" : "=a"(kept), "=d"(high) : "c"(0));
  constexpr unsigned kYmm = 0x6, kZmm = 0xe6, kTiles = 0x60000;
  if ((kept & kYmm) != kYmm || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return {};

  Processor found;
  found.avx2 = (b & bit_AVX2) != 0;
  constexpr unsigned k512 = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
  found.avx512 = found.avx2 && (kept & kZmm) == kZmm && (b & k512) == k512;
  found.avx512_vnni = found.avx512 && (c & bit_AVX512VNNI) != 0;
  found.avx512_vbmi = found.avx512_vnni && (c & bit_AVX512VBMI) != 0;
  constexpr unsigned kAmx = 1u << 24 | 1u << 25;  // AMX-TILE and AMX-INT8
  found.amx = found.avx512_vbmi && (kept & kTiles) == kTiles && (d & kAmx) == kAmx && take_tiles();
  found.avx_vnni = found.avx2 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & bit_AVXVNNI) != 0;
  return found;
}

// Asked once: a virtual machine leaves itself to answer, which takes as long as a small product.
const Processor& processor() {
  static const Processor found = ask_processor();
  return found;
}

}  // namespace

bool has_avx_vnni() { return processor().avx_vnni; }

bool isa_available(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return processor().avx2;
    case Isa::kAvxVnni:
      return processor().avx_vnni || processor().avx512_vnni;
    case Isa::kAvx512:
      return processor().avx512;
    case Isa::kAvx512Vnni:
      return processor().avx512_vnni;
    case Isa::kAvx512Vbmi:
      return processor().avx512_vbmi;
    case Isa::kAmx:
      return processor().amx;
    case Isa::kNeon:
    case Isa::kNeonDot:
      return false;
  }
  return false;
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
