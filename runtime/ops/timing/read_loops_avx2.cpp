#if defined(__x86_64__)
#include "runtime/ops/timing/read_loops_impl.h"

namespace mxspec {

constinit const ReadLoops kReadAvx2 = make_read_loops<32>();

}  // namespace mxspec
#endif
