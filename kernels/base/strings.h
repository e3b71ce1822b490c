// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BASE_STRINGS_H_
#define DEEPPCR_KERNELS_BASE_STRINGS_H_

// Abseil as distributions build it has a string_view of its own, which std::string_view does not
// convert to. These wrappers take std::string_view with either build.

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace deeppcr {

inline absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view ToStd(absl::string_view text) { return {text.data(), text.size()}; }

namespace strings_internal {

template <typename T>
decltype(auto) Piece(const T& value) {
  if constexpr (std::is_same_v<T, std::string_view>) {
    return ToAbsl(value);
  } else {
    return (value);
  }
}

}  // namespace strings_internal

// absl::StrCat: numbers, strings and views one after the other.
template <typename... Args>
std::string StrCat(const Args&... args) {
  return absl::StrCat(strings_internal::Piece(args)...);
}

// Joins the elements of a range, each as the text that `text_of` gives, with separators.
template <typename Range, typename TextOf>
std::string StrJoin(const Range& range, std::string_view separator, TextOf text_of) {
  std::string joined;
  bool first = true;
  for (const auto& element : range) {
    if (!std::exchange(first, false)) joined.append(separator);
    joined.append(text_of(element));
  }
  return joined;
}

// Untrusted text for a message: in quotes, printable ASCII, cut to max_bytes.
inline std::string Quoted(std::string_view text, size_t max_bytes = 80) {
  return StrCat("\"", absl::CHexEscape(ToAbsl(text.substr(0, max_bytes))),
                text.size() > max_bytes ? "...\"" : "\"");
}

// Errors of the codes used most, from the pieces of their message.
template <typename... Args>
absl::Status InvalidArgument(const Args&... args) {
  return absl::InvalidArgumentError(StrCat(args...));
}
template <typename... Args>
absl::Status ResourceExhausted(const Args&... args) {
  return absl::ResourceExhaustedError(StrCat(args...));
}
template <typename... Args>
absl::Status Internal(const Args&... args) {
  return absl::InternalError(StrCat(args...));
}

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BASE_STRINGS_H_
