// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_INTEGRATION_STREAMED_GRADIENT_H_
#define DEEPPCR_TESTS_INTEGRATION_STREAMED_GRADIENT_H_

// StreamGradient's messages, put together and checked on the way.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/integration/gradient_fixture.h"

namespace deeppcr {

struct StreamedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::string data;
};

// What a stream says, with its pieces put together.
struct StreamedGradient {
  grpc::Status status;
  std::vector<StreamedTensor> tensors;
  v1::GradientResponse result;
  int64_t pieces = 0, largest = 0;

  const StreamedTensor& Of(const std::string& name) const {
    for (const StreamedTensor& tensor : tensors)
      if (tensor.name == name) return tensor;
    ADD_FAILURE() << "no tensor " << name;
    return tensors.front();
  }
  std::string Bytes() const {
    std::string all;
    for (const StreamedTensor& tensor : tensors) all += tensor.data;
    return all;
  }
};

inline std::vector<float> FloatsOf(const std::string& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

inline StreamedGradient Stream(v1::DeepPcr::Stub& stub, const v1::GradientRequest& request) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  const auto reader = stub.StreamGradient(&context, request);
  StreamedGradient streamed;
  bool ended = false;
  for (v1::StreamGradientResponse event; reader->Read(&event);) {
    EXPECT_FALSE(ended) << "the result is the last message";
    if (event.has_result()) {
      ended = true;
      streamed.result = event.result();
      continue;
    }
    const v1::ParameterPiece& piece = event.piece();
    const std::vector<int64_t> shape(piece.shape().begin(), piece.shape().end());
    int64_t total = 1;
    for (const int64_t extent : shape) total *= extent;
    EXPECT_EQ(piece.total(), total);
    if (piece.offset() == 0) streamed.tensors.push_back({piece.name(), shape, ""});
    StreamedTensor& tensor = streamed.tensors.back();
    EXPECT_EQ(piece.name(), tensor.name);
    EXPECT_EQ(shape, tensor.shape);
    EXPECT_EQ(piece.offset() * int64_t{sizeof(float)}, std::ssize(tensor.data));
    tensor.data += piece.data();
    EXPECT_LE(std::ssize(tensor.data), total * int64_t{sizeof(float)});
    ++streamed.pieces;
    streamed.largest = std::max(streamed.largest, std::ssize(piece.data()));
  }
  streamed.status = reader->Finish();
  EXPECT_EQ(ended, streamed.status.ok());
  for (const StreamedTensor& tensor : streamed.tensors) {
    int64_t bytes = sizeof(float);
    for (const int64_t extent : tensor.shape) bytes *= extent;
    EXPECT_EQ(std::ssize(tensor.data), ended ? bytes : std::ssize(tensor.data));
  }
  return streamed;
}

}  // namespace deeppcr

#endif  // DEEPPCR_TESTS_INTEGRATION_STREAMED_GRADIENT_H_
