// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_SANITIZERS_H_
#define DEEPPCR_TESTS_TESTING_SANITIZERS_H_

// Whether a sanitizer watches the tests: it has memory and locks of its own, and takes its time.

#include "absl/base/config.h"

namespace deeppcr::testing {

#ifdef ABSL_HAVE_ADDRESS_SANITIZER
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
#ifdef ABSL_HAVE_THREAD_SANITIZER
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
inline constexpr bool kSanitized = kAddressSanitizer || kThreadSanitizer;

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_SANITIZERS_H_
