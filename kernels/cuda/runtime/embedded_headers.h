// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_RUNTIME_EMBEDDED_HEADERS_H_
#define DEEPPCR_KERNELS_CUDA_RUNTIME_EMBEDDED_HEADERS_H_

#include <span>

namespace deeppcr::cuda {

// A header as text, named as in #include.
struct EmbeddedHeader {
  const char* name;
  const char* text;
};

// The headers that code for NVRTC includes, ours and those of the standard library
// (standard_headers.h), as embed_headers.cmake found them when this was built.
std::span<const EmbeddedHeader> EmbeddedHeaders();

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_RUNTIME_EMBEDDED_HEADERS_H_
