#pragma once

#include <exception>

namespace mxspec {

// The result of the body, or `otherwise` where it throws: an exception that reaches C ends the process.
template <class Result, class Body>
Result no_throw(Result otherwise, const Body& body) {
  try {
    return body();
  } catch (const std::exception&) {
    return otherwise;
  }
}

}  // namespace mxspec
