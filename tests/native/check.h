// CHECK(condition) << text: prints where and what failed and counts it; main() ends with `return check_result();`.
#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>

namespace mxspec::test {

inline std::atomic<int> checks{0};
inline std::atomic<int> failures{0};

// Prints its line when it goes out of scope. Gives up after 20 failures: they will all have one cause.
class Failure {
 public:
  Failure(const char* file, int line, const char* condition) { text_ << file << ":" << line << ": " << condition; }
  ~Failure() {
    std::cerr << text_.str() << std::endl;
    if (++failures >= 20) std::_Exit(1);
  }
  template <class T>
  Failure& operator<<(const T& value) {
    text_ << (first_ ? ": " : " ") << value;
    first_ = false;
    return *this;
  }

 private:
  std::ostringstream text_;
  bool first_ = true;
};

// 0 where all checks held and there were some.
inline int check_result() {
  std::cerr << checks << " checks, " << failures << " failed\n";
  return checks > 0 && failures == 0 ? 0 : 1;
}

}  // namespace mxspec::test

#define CHECK(condition)                   \
  if (++mxspec::test::checks; condition) { \
  } else                                   \
    mxspec::test::Failure(__FILE__, __LINE__, #condition)
