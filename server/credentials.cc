// SPDX-License-Identifier: Apache-2.0
#include "server/credentials.h"

#include <string>

#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace deeppcr {
namespace {

namespace tls = grpc::experimental;

constexpr unsigned kRefreshSeconds = 1;

std::shared_ptr<grpc::ServerCredentials> MakeTls(const TlsFiles& files) {
  tls::TlsServerCredentialsOptions options(std::make_shared<tls::FileWatcherCertificateProvider>(
      files.pair_path(), files.pair_path(), files.client_authority_path(), kRefreshSeconds));
  options.watch_identity_key_cert_pairs();
  if (!files.client_authority_path().empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return tls::TlsServerCredentials(options);
}

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeCredentials(
    const ServerConfig& config, const TlsFiles* files,
    const std::shared_ptr<grpc::AuthMetadataProcessor>& gate) {
  std::shared_ptr<grpc::ServerCredentials> credentials;
  if (files != nullptr) {
    credentials = MakeTls(*files);
  } else if (gate == nullptr || config.listen.starts_with(kUnixScheme)) {
    return grpc::InsecureServerCredentials();
  } else {
    // Insecure credentials take no gate. These put nothing on the wire either.
    credentials = tls::LocalServerCredentials(LOCAL_TCP);
  }
  if (gate != nullptr) credentials->SetAuthMetadataProcessor(gate);
  return credentials;
}

std::shared_ptr<grpc::ServerCredentials> MakeAdminCredentials() {
  return tls::LocalServerCredentials(UDS);
}

}  // namespace deeppcr
