// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_TLS_FILES_H_
#define DEEPPCR_SERVER_TLS_FILES_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/linked_file.h"

namespace deeppcr {

// The files of TLS as they were when they last fitted together. Who renews a certificate replaces
// two files, one after the other, and may write a wrong one: whoever reads them in between has a
// key that is not the certificate's, and every new connection fails. Readers have paths of files
// in memory in place of them, which change as a whole.
class TlsFiles {
 public:
  // key, certificate: PEM files of one pair; client_authority: a PEM file, or empty.
  // patience: how long to wait for files that fit, as they may be replaced just now.
  // Errors: those of ReadLinkedFile; kInvalidArgument naming the flag, for a file that is no PEM,
  // or a key that has a password or is not the certificate's; kUnavailable without memory files.
  static absl::StatusOr<std::unique_ptr<TlsFiles>> Open(const std::string& key,
                                                        const std::string& certificate,
                                                        const std::string& client_authority,
                                                        std::chrono::milliseconds patience);

  // Takes what has changed. Errors: those of Open, every time until the files are right; what was
  // taken before stays. For one thread at a time.
  absl::Status Refresh();

  // A file with the key and the certificates; the other is empty without one. They last as long as
  // this object, and have another time of change whenever they change.
  const std::string& pair_path() const { return pair_.path(); }
  const std::string& client_authority_path() const { return client_authority_.path(); }

  // When the certificate ends, in UNIX time.
  int64_t end() const { return end_; }

 private:
  // A file in memory that is replaced at one moment.
  class MemoryFile {
   public:
    MemoryFile() = default;
    ~MemoryFile();
    MemoryFile(const MemoryFile&) = delete;
    MemoryFile& operator=(const MemoryFile&) = delete;

    absl::Status Replace(const std::string& content);
    const std::string& path() const { return path_; }

   private:
    int descriptor_ = -1;
    int64_t changes_ = 0;
    std::string path_;
  };

  TlsFiles(const std::string& key, const std::string& certificate,
           const std::string& client_authority);
  absl::Status TakePair();
  absl::Status TakeClientAuthority();

  const std::string key_file_, certificate_file_, client_authority_file_;
  FileWatch key_watch_, certificate_watch_, client_authority_watch_;
  bool pair_is_due_ = true, client_authority_is_due_ = true;
  MemoryFile pair_, client_authority_;
  int64_t end_ = 0;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_TLS_FILES_H_
