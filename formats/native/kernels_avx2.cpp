#include "formats/native/kernels.h"
namespace mxspec::formats {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace mxspec::formats
