// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_SIMT_FIBER_H_
#define DEEPPCR_TESTS_TESTING_SIMT_FIBER_H_

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <functional>

namespace deeppcr::testing::simt {

// A function that gives way to whoever resumed it, and goes on when it is resumed again.
// AddressSanitizer is told of every change of stacks.
class Fiber {
 public:
  // `stack` [bytes] is the caller's and outlives the fiber.
  Fiber(std::byte* stack, size_t bytes, std::function<void()> body);
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body until it yields or returns; not after it has returned.
  void Resume();
  // Called by the body.
  void Yield();
  bool done() const { return done_; }

 private:
  std::byte* const stack_;
  const size_t bytes_;
  const std::function<void()> body_;
  boost::context::fiber inside_;   // while it does not run
  boost::context::fiber outside_;  // who resumed it, while it runs
  const void* outer_stack_ = nullptr;
  size_t outer_bytes_ = 0;
  void *inner_fake_ = nullptr, *outer_fake_ = nullptr;  // AddressSanitizer's
  bool done_ = false;
};

}  // namespace deeppcr::testing::simt

#endif  // DEEPPCR_TESTS_TESTING_SIMT_FIBER_H_
