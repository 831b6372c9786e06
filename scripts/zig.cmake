# A toolchain file: builds for the glibc of manylinux_2_28 with the clang of zig (package ziglang), which brings the C
# library's headers and stubs of every machine, and a C++ library that is linked in. Read by scripts/wheels, from the
# environment: ZIG, the program, and WHEEL_MACHINE, x86_64 or aarch64.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR $ENV{WHEEL_MACHINE})
set(CMAKE_CXX_COMPILER $ENV{ZIG} c++)
set(CMAKE_CXX_COMPILER_TARGET ${CMAKE_SYSTEM_PROCESSOR}-linux-gnu.2.28)
set(CMAKE_CXX_FLAGS_INIT -Wno-unknown-warning-option)  # pragmas for GCC name warnings of its own
# No symbols for debuggers, and so no paths of this machine; of the C++ library's names none; never unloaded, as that
# library's ends of thread_local values run at the end of a thread, and the process, and would be gone.
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-s -Wl,-z,nodelete -Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/wheels.map")
set(CMAKE_EXE_LINKER_FLAGS_INIT -s)     # the same, or zig compiles its C++ library twice
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)

# The machine's own ar may know its own machine only.
set(CMAKE_AR $ENV{ZIG})
set(CMAKE_RANLIB $ENV{ZIG})
set(CMAKE_CXX_ARCHIVE_CREATE "<CMAKE_AR> ar qc <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_APPEND "<CMAKE_AR> ar q <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_FINISH "<CMAKE_RANLIB> ranlib <TARGET>")

if(CMAKE_SYSTEM_PROCESSOR STREQUAL aarch64 AND NOT CMAKE_HOST_SYSTEM_PROCESSOR STREQUAL aarch64)
  set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L /usr/aarch64-linux-gnu)  # the loader and the C library
endif()
