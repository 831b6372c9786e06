// Hints of the kernels to the compiler.
#pragma once

#define MXSPEC_INLINE inline __attribute__((always_inline))
#define MXSPEC_NOINLINE __attribute__((noinline))
#define MXSPEC_LAMBDA __attribute__((always_inline))

// Before a loop over rows, tiles or registers of a kernel: it must vanish early, or the arrays of sums are written to
// memory in every step of the loops around it.
#if defined(__SANITIZE_ADDRESS__)
#define MXSPEC_UNROLL  // except where every access is checked: that takes a minute to compile
#else
#define MXSPEC_UNROLL _Pragma("GCC unroll 64")
#endif
