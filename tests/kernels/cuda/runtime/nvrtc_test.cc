// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/nvrtc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace deeppcr::cuda {
namespace {

using ::testing::HasSubstr;

class NvrtcTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto version = NvrtcVersion(); !version.ok()) GTEST_SKIP() << version.status();
  }
};

constexpr char kKernel[] =
    "#include \"kernels/cuda/math/activation.h\"\n"
    "using namespace deeppcr;\n"
    "extern \"C\" __global__ void activate(float* x) {\n"
    "  x[threadIdx.x] = cuda::Activate(Activation::kMish, x[threadIdx.x] * 3.0F + 1.0F);\n"
    "}\n";

TEST_F(NvrtcTest, CompilesWithOurHeaders) {
  const auto cubin = CompileForDevice(kKernel, 90, CodeForm::kCubin, nullptr);
  ASSERT_TRUE(cubin.ok()) << cubin.status();
  EXPECT_THAT(*cubin, HasSubstr(".text.activate"));
  const auto none = CompileForDevice(kKernel, 90, CodeForm::kNone, nullptr);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(*none, "");
}

// As in the module: a product and a sum stay two operations.
TEST_F(NvrtcTest, FusesNothing) {
  const auto ptx = CompileForDevice(kKernel, 90, CodeForm::kPtx, nullptr);
  ASSERT_TRUE(ptx.ok()) << ptx.status();
  EXPECT_THAT(*ptx, HasSubstr("mul.rn.f32"));
  EXPECT_THAT(*ptx, HasSubstr("add.rn.f32"));
}

TEST_F(NvrtcTest, SaysWhatTheCompilerSays) {
  const auto code = CompileForDevice("#error so it is\n", 90, CodeForm::kNone, nullptr);
  EXPECT_EQ(code.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(code.status().message()), HasSubstr("so it is"));
  const auto no_header =
      CompileForDevice("#include \"/etc/hostname\"\n", 90, CodeForm::kNone, nullptr);
  EXPECT_FALSE(no_header.ok());
  EXPECT_FALSE(CompileForDevice(kKernel, 123456, CodeForm::kCubin, nullptr).ok());
}

TEST_F(NvrtcTest, StopsWhenItsTokenFires) {
  CancelToken token;
  token.Cancel();
  EXPECT_EQ(CompileForDevice(kKernel, 90, CodeForm::kCubin, &token).status().code(),
            absl::StatusCode::kCancelled);
  // Takes far longer than the time that it is given.
  std::string source = kKernel;
  for (int i = 0; i < 400; ++i)
    source +=
        "extern \"C\" __global__ void f" + std::to_string(i) +
        "(float* x) { for (int i = 0; i < 9; ++i) x[i] = powf(x[i], x[i + 1]) + sinf(x[i]); }\n";
  const CancelToken soon(CancelToken::Clock::now() + std::chrono::milliseconds(300));
  EXPECT_EQ(CompileForDevice(source, 90, CodeForm::kCubin, &soon).status().code(),
            absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace deeppcr::cuda
