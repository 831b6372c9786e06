#include "formats/native/kernels.h"
namespace mxspec::formats {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace mxspec::formats
