// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_PROGRAM_BACKEND_H_
#define DEEPPCR_TESTS_TESTING_PROGRAM_BACKEND_H_

#include <memory>

#include "kernels/backend/backend.h"

namespace deeppcr::testing {

// A backend that gets every named stack as the step program that it is, so that all tests of named
// stacks are tests of programs too. (The CPU backend takes named denoisers for programs itself.)
std::unique_ptr<Backend> WithProgramsForStacks(std::unique_ptr<Backend> backend);

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_PROGRAM_BACKEND_H_
