// SPDX-License-Identifier: Apache-2.0
#include "server/credentials.h"

#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <ctime>
#include <string>

#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "kernels/base/linked_file.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

namespace tls = grpc::experimental;

constexpr int64_t kMaxPemBytes = int64_t{1} << 20;
constexpr unsigned kRefreshSeconds = 1;

template <typename T, void (*Free)(T*)>
struct Freed {
  void operator()(T* pointer) const { Free(pointer); }
};
using Certificate = std::unique_ptr<X509, Freed<X509, X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY, EVP_PKEY_free>>;
using Memory = std::unique_ptr<BIO, Freed<BIO, BIO_free_all>>;

Memory MemoryOf(const std::string& text) {
  return Memory(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// Without this check gRPC would start with any file and refuse every client.
absl::StatusOr<Certificate> ReadCertificate(const std::string& flag, const std::string& path) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::string text, ReadLinkedFile(path, kMaxPemBytes));
  Certificate certificate(PEM_read_bio_X509(MemoryOf(text).get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr)
    return InvalidArgument("--", flag, ": ", path, " holds no PEM certificate");
  return certificate;
}

absl::Status CheckKeyPair(const ServerConfig& config) {
  DEEPPCR_ASSIGN_OR_RETURN(const Certificate certificate,
                           ReadCertificate("tls_cert", config.tls_cert));
  DEEPPCR_ASSIGN_OR_RETURN(const std::string text, ReadLinkedFile(config.tls_key, kMaxPemBytes));
  // Without a password: nobody is there to be asked for one.
  const auto no_password = [](char*, int, int, void*) { return 0; };
  const Key key(PEM_read_bio_PrivateKey(MemoryOf(text).get(), nullptr, no_password, nullptr));
  if (key == nullptr)
    return InvalidArgument("--tls_key: ", config.tls_key,
                           " holds no PEM private key without a password");
  if (X509_check_private_key(certificate.get(), key.get()) != 1)
    return InvalidArgument("--tls_key: ", config.tls_key, " is not the key of ", config.tls_cert);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeTls(const ServerConfig& config) {
  DEEPPCR_RETURN_IF_ERROR(CheckKeyPair(config));
  tls::TlsServerCredentialsOptions options(std::make_shared<tls::FileWatcherCertificateProvider>(
      config.tls_key, config.tls_cert, config.tls_client_ca, kRefreshSeconds));
  options.watch_identity_key_cert_pairs();
  if (!config.tls_client_ca.empty()) {
    DEEPPCR_RETURN_IF_ERROR(ReadCertificate("tls_client_ca", config.tls_client_ca).status());
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return tls::TlsServerCredentials(options);
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeCredentials(
    const ServerConfig& config, const std::shared_ptr<grpc::AuthMetadataProcessor>& gate) {
  std::shared_ptr<grpc::ServerCredentials> credentials;
  if (!config.tls_cert.empty()) {
    DEEPPCR_ASSIGN_OR_RETURN(credentials, MakeTls(config));
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

absl::StatusOr<int64_t> CertificateEnd(const std::string& path) {
  DEEPPCR_ASSIGN_OR_RETURN(const Certificate certificate, ReadCertificate("tls_cert", path));
  std::tm end = {};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &end) != 1)
    return InvalidArgument("--tls_cert: ", path, " has no end");
  return int64_t{timegm(&end)};
}

}  // namespace deeppcr
