#pragma once

#include <cstddef>

namespace mxspec {

// Calls body(user, index) once for each index < count, in any order, from any threads, and returns when all are done.
struct ParallelFor {
  void (*run)(void* context, size_t count, void (*body)(void* user, size_t index), void* user);
  void* context;
  size_t threads;  // about how many run at a time
  // Says what the call after the running one will read; nullptr where nobody wants to know.
  void (*expect)(void* context, const void* bytes, size_t count) = nullptr;

  // body(index). Throws what one of them threw.
  template <class Body>
  void operator()(size_t count, const Body& body) const {
    const auto call = [](void* user, size_t index) { (*static_cast<const Body*>(user))(index); };
    run(context, count, call, const_cast<void*>(static_cast<const void*>(&body)));
  }
};

}  // namespace mxspec
