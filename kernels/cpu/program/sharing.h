// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CPU_PROGRAM_SHARING_H_
#define DEEPPCR_KERNELS_CPU_PROGRAM_SHARING_H_

#include <cstdint>

#include "kernels/base/team.h"

namespace deeppcr::cpu {

// Sharing::share of a Team.
inline void ShareByTeam(void* team, Team::Piece piece, void* context, int64_t most) {
  static_cast<Team*>(team)->Do(piece, context, most);
}

}  // namespace deeppcr::cpu

#endif  // DEEPPCR_KERNELS_CPU_PROGRAM_SHARING_H_
