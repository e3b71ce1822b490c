// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_NPZ_H_
#define DEEPPCR_CLIENT_NPZ_H_

// NumPy's .npz files: zip archives of .npy files, stored or deflated, for files from anywhere.

#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "client/array.h"

namespace deeppcr {

// The arrays of a whole .npz file by their names. Accepted: what np.savez and np.savez_compressed
// write, up to 64 arrays and kMaxArrayBytes of them in all. Errors: kInvalidArgument naming the
// member, what was expected, what came: no archive or one that is cut short; zip64, encryption,
// other compression; a size, checksum or name that does not hold; as ParseNpy.
absl::StatusOr<std::map<std::string, Array>> ParseNpz(std::string_view bytes);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_NPZ_H_
