// A tensor as the argument checks see it: element type, shape, bytes; independent of ONNX Runtime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace mxspec {

// The user's mistake: what, got, expected. It reaches Python as an ONNX Runtime error with this text.
class OpError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// With the numbers of ONNX and ONNX Runtime.
enum class ElementType : int { kAny = 0, kFloat32 = 1, kUint8 = 2, kInt32 = 6, kInt64 = 7, kFloat16 = 10 };

inline std::string name_of(ElementType type) {
  switch (type) {
    case ElementType::kAny:
      return "any type";
    case ElementType::kFloat32:
      return "float32";
    case ElementType::kUint8:
      return "uint8";
    case ElementType::kInt32:
      return "int32";
    case ElementType::kInt64:
      return "int64";
    case ElementType::kFloat16:
      return "float16";
  }
  return "element type " + std::to_string(static_cast<int>(type));
}

class Shape {
 public:
  static constexpr size_t kMaxRank = 8;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : rank_(dims.size()) {
    size_t i = 0;
    for (const int64_t dim : dims) dims_[i++] = dim;
  }
  explicit Shape(size_t rank) : rank_(rank) {}

  size_t rank() const { return rank_; }
  int64_t operator[](size_t i) const { return dims_[i]; }
  int64_t& operator[](size_t i) { return dims_[i]; }
  const int64_t* dims() const { return dims_; }
  int64_t* dims() { return dims_; }

  int64_t size() const {
    int64_t product = 1;
    for (size_t i = 0; i < rank_; ++i) product *= dims_[i];
    return product;
  }

  bool operator==(const Shape& other) const {
    if (rank_ != other.rank_) return false;
    for (size_t i = 0; i < rank_; ++i) {
      if (dims_[i] != other.dims_[i]) return false;
    }
    return true;
  }

  std::string text() const {
    std::string out = "[";
    for (size_t i = 0; i < rank_; ++i) out += (i ? ", " : "") + std::to_string(dims_[i]);
    return out + "]";
  }

 private:
  size_t rank_ = 0;
  int64_t dims_[kMaxRank] = {};
};

struct Tensor {
  ElementType type = ElementType::kAny;
  Shape shape;
  void* data = nullptr;

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

}  // namespace mxspec
