// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_GPU_CASES_H_
#define DEEPPCR_TESTS_GPU_CASES_H_

// The common part of the programs for a GPU: what is run is said before it runs, so that a crash or
// a hang names it; checks; memory of the device.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace deeppcr::cuda {

inline int checks = 0, failures = 0;
inline std::string running;  // the case at hand

inline void Begin(const std::string& name) {
  running = name;
  std::printf("case %s\n", name.c_str());
}

inline void Check(bool right, const std::string& what) {
  ++checks;
  if (right) return;
  ++failures;
  std::printf("FAILED: %s\n", what.c_str());
}

inline void Must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("FAILED: %s: %s: %s\n", running.c_str(), what, cudaGetErrorString(error));
  std::exit(1);
}

template <class T>
class OnDevice {
 public:
  explicit OnDevice(size_t size) : size_(size) {
    void* memory = nullptr;
    Must(cudaMalloc(&memory, size * sizeof(T)), "cudaMalloc");
    data_ = static_cast<T*>(memory);
    Must(cudaMemset(data_, 0xFF, size * sizeof(T)), "cudaMemset");
  }
  explicit OnDevice(const std::vector<T>& values) : OnDevice(values.size()) {
    Must(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), "upload");
  }
  OnDevice(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(data_); }
  T* data() const { return data_; }
  size_t size() const { return size_; }
  std::vector<T> Host() const {
    std::vector<T> values(size_);
    Must(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost), "download");
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t size_;
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_TESTS_GPU_CASES_H_
