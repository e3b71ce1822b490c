// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_NPZ_H_
#define DEEPPCR_CLIENT_NPZ_H_

// NumPy's .npz files: zip archives of .npy files, stored or deflated, for files from anywhere.

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "client/array.h"

namespace deeppcr {

// Arrays of a .npz file by their names: the `wanted` ones, or all if none is named. Accepted: what
// np.savez and np.savez_compressed write, up to 64 arrays and kMaxArrayBytes of wanted ones in all;
// the others may be of any type. Errors: kInvalidArgument naming the member, what was expected,
// what came: no archive or one that is cut short; a wanted array that is not there; zip64,
// encryption, other compression; a size, checksum or name that does not hold; as ParseNpy.
absl::StatusOr<std::map<std::string, Array>> ParseNpz(
    std::string_view bytes, std::span<const std::string_view> wanted = {});

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_NPZ_H_
