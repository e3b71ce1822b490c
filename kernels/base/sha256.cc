// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/sha256.h"

#include <openssl/evp.h>

#include "absl/strings/escaping.h"

namespace deeppcr {

absl::StatusOr<std::string> Sha256Hex(std::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr) != 1) {
    return absl::InternalError("SHA-256 is not available in the crypto library");
  }
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), size});
}

}  // namespace deeppcr
