#include "runtime/ops/timing/read_loops.h"

#include "formats/native/isa.h"
#include "runtime/ops/timing/read_loops_impl.h"

namespace mxspec {

constinit const ReadLoops kReadBaseline = make_read_loops<16>();

const ReadLoops& read_loops() {
#if defined(__x86_64__)
  if (isa_available(Isa::kAvx512)) return kReadAvx512;
  if (isa_available(Isa::kAvx2)) return kReadAvx2;
#endif
  return kReadBaseline;
}

}  // namespace mxspec
