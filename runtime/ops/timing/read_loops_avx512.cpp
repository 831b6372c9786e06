#if defined(__x86_64__)
#include "runtime/ops/timing/read_loops_impl.h"

namespace mxspec {

constinit const ReadLoops kReadAvx512 = make_read_loops<64>();

}  // namespace mxspec
#endif
