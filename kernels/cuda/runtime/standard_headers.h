// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_RUNTIME_STANDARD_HEADERS_H_
#define DEEPPCR_KERNELS_CUDA_RUNTIME_STANDARD_HEADERS_H_

// What our device code takes of the standard library, for NVRTC, which comes without one: all
// standard headers are this one there (nvrtc.cc). Mathematical functions NVRTC brings along. Of
// functions of the host no more than what their headers declare.

using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long;
using uint64_t = unsigned long;
static_assert(sizeof(int64_t) == 8, "Linux");

#define INFINITY __int_as_float(0x7F800000)
#define NAN __int_as_float(0x7FFFFFFF)
#define __builtin_sqrtf sqrtf
#define __builtin_inff() INFINITY

namespace std {

using size_t = decltype(sizeof(0));
enum class byte : unsigned char {};

template <class T, T kValue>
struct integral_constant {
  static constexpr T value = kValue;
};
template <bool kFirst, class First, class Second>
struct conditional {
  using type = First;
};
template <class First, class Second>
struct conditional<false, First, Second> {
  using type = Second;
};
template <bool kFirst, class First, class Second>
using conditional_t = typename conditional<kFirst, First, Second>::type;

template <class T, size_t kSize>
struct array {
  T elements[kSize];
};
template <class First, class... Rest>
array(First, Rest...) -> array<First, 1 + sizeof...(Rest)>;

class string_view {
 public:
  constexpr string_view(const char* text) : text_(text) {}

 private:
  const char* text_;
};

using ::exp;
using ::sqrt;
inline double clamp(double x, double least, double most) {
  return x < least ? least : most < x ? most : x;
}

}  // namespace std

#endif  // DEEPPCR_KERNELS_CUDA_RUNTIME_STANDARD_HEADERS_H_
