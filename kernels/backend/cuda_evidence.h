// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BACKEND_CUDA_EVIDENCE_H_
#define DEEPPCR_KERNELS_BACKEND_CUDA_EVIDENCE_H_

namespace deeppcr {

// The committed results of a GPU that has passed the tests of these very CUDA sources, as compiled
// by this version of nvcc; empty if there are none (kernels/cuda_evidence.cmake).
extern const char kCudaEvidence[];

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BACKEND_CUDA_EVIDENCE_H_
