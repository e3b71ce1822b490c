// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_CREDENTIALS_H_
#define DEEPPCR_SERVER_CREDENTIALS_H_

#include <memory>

#include "grpcpp/security/auth_metadata_processor.h"
#include "grpcpp/security/server_credentials.h"
#include "server/config.h"
#include "server/tls_files.h"

namespace deeppcr {

// The credentials of --listen: plain text, or TLS with the certificate of `files`, and with client
// certificates if they name who signs them. Null: no TLS. The files last as long as the
// credentials; what they take is in use within a second or two. gate: sees the headers of every
// call before its message is read, except on a UNIX socket; null: none. Where there is one, plain
// text is for peers on loopback only.
std::shared_ptr<grpc::ServerCredentials> MakeCredentials(
    const ServerConfig& config, const TlsFiles* files,
    const std::shared_ptr<grpc::AuthMetadataProcessor>& gate);

// The credentials of --admin_listen, by which IsOfAdminSocket (rpc/shown.h) knows its calls.
std::shared_ptr<grpc::ServerCredentials> MakeAdminCredentials();

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_CREDENTIALS_H_
