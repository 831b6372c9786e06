// Which instruction set the kernels use: the best that this machine has, or what MXSPEC_ISA asks for.
#pragma once

#include <string>
#include <string_view>

// The name of a table in a source that CMakeLists.txt compiles for several instruction sets, MXSPEC_FOR being the name
// of one: MXSPEC_OF_ISA(kLanes) is kLanesAvx2 where that is Avx2.
#define MXSPEC_OF_ISA(table) MXSPEC_JOIN(table, MXSPEC_FOR)
#define MXSPEC_JOIN(table, isa) MXSPEC_JOIN_EXPANDED(table, isa)
#define MXSPEC_JOIN_EXPANDED(table, isa) table##isa

namespace mxspec {

// In rising order; of x86-64's, each one needs all that the one before it needs, but that AVX-512 goes without
// AVX-VNNI. Every aarch64 has NEON.
enum class Isa {
  kScalar,
  kAvx2,
  kAvxVnni,  // in either of its encodings: its own, or that of AVX-512 with VNNI
  kAvx512,
  kAvx512Vnni,
  kAvx512Vbmi,  // and VNNI
  kAmx,         // and AVX-512 with VBMI
  kNeon,
  kNeonDot,  // NEON with the dot products of ARMv8.2
};

inline constexpr Isa kAllIsas[] = {Isa::kScalar,     Isa::kAvx2, Isa::kAvxVnni, Isa::kAvx512, Isa::kAvx512Vnni,
                                   Isa::kAvx512Vbmi, Isa::kAmx,  Isa::kNeon,    Isa::kNeonDot};

// The name that MXSPEC_ISA takes.
const char* isa_name(Isa isa);

// Floats that a register of it holds.
int vector_lanes(Isa isa);

// AVX-VNNI in its own encoding.
bool has_avx_vnni();

// True where this machine (processor and operating system) can run it.
bool isa_available(Isa isa);

struct IsaChoice {
  Isa isa = Isa::kScalar;
  std::string error;  // not empty: what was asked for is unknown or not available here, and isa must not be used
};

// The best available instruction set where `wanted` is empty, else the one of that name.
IsaChoice choose_isa(std::string_view wanted);

// choose_isa() of the environment variable MXSPEC_ISA, read once in a process.
const IsaChoice& chosen_isa();

}  // namespace mxspec
