// Which instruction set the kernels use: the best that this machine has, or what MXSPEC_ISA asks for.
#pragma once

#include <string>
#include <string_view>

namespace mxspec {

// In rising order; of x86-64's, each one needs all that the one before it needs. Every aarch64 has NEON.
enum class Isa { kScalar, kAvx2, kAvx512, kAvx512Vnni, kNeon };

inline constexpr Isa kAllIsas[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Vnni, Isa::kNeon};

// The name that MXSPEC_ISA takes: scalar, avx2, avx512, avx512vnni or neon.
const char* isa_name(Isa isa);

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
