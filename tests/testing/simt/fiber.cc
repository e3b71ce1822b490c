// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/simt/fiber.h"

#include <boost/context/preallocated.hpp>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace deeppcr::testing::simt {
namespace {

// Announces the switch to the stack [bottom, bottom + bytes); `fake` receives what the left stack
// needs to go on, and is null if that stack never goes on.
void StartSwitch([[maybe_unused]] void** fake, [[maybe_unused]] const void* bottom,
                 [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fake, bottom, bytes);
#endif
}

// Completes the switch; returns where the stack lies that was left.
void FinishSwitch([[maybe_unused]] void* fake, [[maybe_unused]] const void** bottom,
                  [[maybe_unused]] size_t* bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, bottom, bytes);
#endif
}

// An allocator for a stack that belongs to somebody else.
struct BorrowedStack {
  boost::context::stack_context allocate() { return {}; }
  void deallocate(boost::context::stack_context&) {}
};

boost::context::preallocated On(std::byte* stack, size_t bytes) {
  boost::context::stack_context context;
  context.size = bytes;
  context.sp = stack + bytes;  // stacks grow downwards
  return {context.sp, bytes, context};
}

}  // namespace

Fiber::Fiber(std::byte* stack, size_t bytes, std::function<void()> body)
    : stack_(stack), bytes_(bytes), body_(std::move(body)) {
  inside_ = boost::context::fiber(std::allocator_arg, On(stack, bytes), BorrowedStack(),
                                  [this](boost::context::fiber&& outside) {
                                    FinishSwitch(nullptr, &outer_stack_, &outer_bytes_);
                                    outside_ = std::move(outside);
                                    body_();
                                    done_ = true;
                                    StartSwitch(nullptr, outer_stack_, outer_bytes_);
                                    return std::move(outside_);
                                  });
}

void Fiber::Resume() {
  StartSwitch(&outer_fake_, stack_, bytes_);
  inside_ = std::move(inside_).resume();
  FinishSwitch(outer_fake_, nullptr, nullptr);
}

void Fiber::Yield() {
  StartSwitch(&inner_fake_, outer_stack_, outer_bytes_);
  outside_ = std::move(outside_).resume();
  FinishSwitch(inner_fake_, &outer_stack_, &outer_bytes_);
}

}  // namespace deeppcr::testing::simt
