// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_SIMT_FAKE_RUNTIME_H_
#define DEEPPCR_TESTS_TESTING_SIMT_FAKE_RUNTIME_H_

#include <cstdint>

namespace deeppcr::testing::simt {

// What the fake NVRTC makes of any source.
inline constexpr char kFakeCode[] = "fake code";

// Lets the fake GPU hang: `launches` more launches end, and the one after never does. From then on
// a call that would wait for it ends the program. A negative number: it never hangs.
void HangAfter(int64_t launches);

// Lets devices that are opened from now on find an NVRTC, whose code has the kernels "sequential",
// "propagation" and "expansion" alone, which are there to be found and not to be launched; in the
// beginning there is none.
void FindNvrtc(bool found);
// Libraries of such code that are loaded.
int NumLibraries();

}  // namespace deeppcr::testing::simt

#endif  // DEEPPCR_TESTS_TESTING_SIMT_FAKE_RUNTIME_H_
