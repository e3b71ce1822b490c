// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_CREDENTIALS_H_
#define DEEPPCR_SERVER_CREDENTIALS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/security/auth_metadata_processor.h"
#include "grpcpp/security/server_credentials.h"
#include "server/config.h"

namespace deeppcr {

// The credentials of --listen: plain text, or TLS if config names a certificate, with client
// certificates if it names who signs them. The files are read again when they change; while
// certificate and key do not fit together new connections fail, so both are to change at once.
// gate: sees the headers of every call before its message is read, except on a UNIX socket; null:
// none. Where there is one, plain text is for peers on loopback only.
// Errors: those of ReadFile; kInvalidArgument (a file that is no PEM, or a key that is not the
// certificate's).
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeCredentials(
    const ServerConfig& config, const std::shared_ptr<grpc::AuthMetadataProcessor>& gate);

// The credentials of --admin_listen, by which IsOfAdminSocket (rpc/shown.h) knows its calls.
std::shared_ptr<grpc::ServerCredentials> MakeAdminCredentials();

// When the first certificate of this PEM file ends, in UNIX time. Errors: those of ReadLinkedFile;
// kInvalidArgument for what is no certificate.
absl::StatusOr<int64_t> CertificateEnd(const std::string& path);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_CREDENTIALS_H_
