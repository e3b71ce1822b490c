// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_SIMT_FIBER_H_
#define DEEPPCR_TESTS_TESTING_SIMT_FIBER_H_

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <functional>

namespace deeppcr::testing::simt {

// A function that yields to whoever resumed it, and goes on when it is resumed again.
// AddressSanitizer is told of every switch of stacks.
class Fiber {
 public:
  // `stack` has `bytes` bytes, belongs to the caller and outlives the fiber.
  Fiber(std::byte* stack, size_t bytes, std::function<void()> body);
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body until it yields or returns; must not be called after the body has returned.
  void Resume();
  // Gives way to Resume's caller; called by the body.
  void Yield();
  bool done() const { return done_; }

 private:
  std::byte* const stack_;
  const size_t bytes_;
  const std::function<void()> body_;
  boost::context::fiber inside_;   // the body, while it does not run
  boost::context::fiber outside_;  // the caller of Resume, while the body runs
  const void* outer_stack_ = nullptr;
  size_t outer_bytes_ = 0;
  void *inner_fake_ = nullptr, *outer_fake_ = nullptr;  // state of AddressSanitizer
  bool done_ = false;
};

}  // namespace deeppcr::testing::simt

#endif  // DEEPPCR_TESTS_TESTING_SIMT_FIBER_H_
