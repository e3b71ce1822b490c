// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BUILD_ID_H_
#define DEEPPCR_KERNELS_BUILD_ID_H_

namespace deeppcr {

// The version, "+", and 16 hexadecimal digits over the sources that decide the bits of answers, the
// compiler and its flags. Made by kernels/build_id.cmake in every build that changes one of them,
// with or without a repository around.
extern const char kBuildId[];

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BUILD_ID_H_
