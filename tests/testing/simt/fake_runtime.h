// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_SIMT_FAKE_RUNTIME_H_
#define DEEPPCR_TESTS_TESTING_SIMT_FAKE_RUNTIME_H_

#include <cstdint>

namespace deeppcr::testing::simt {

// Lets the fake GPU hang: `launches` more launches end, and the one after never does. From then on
// a call that would wait for it ends the program. A negative number: it never hangs.
void HangAfter(int64_t launches);

}  // namespace deeppcr::testing::simt

#endif  // DEEPPCR_TESTS_TESTING_SIMT_FAKE_RUNTIME_H_
