// SPDX-License-Identifier: Apache-2.0
#include "server/tls_files.h"

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <thread>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

constexpr int64_t kMaxPemBytes = int64_t{1} << 20;

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

absl::StatusOr<Certificate> FirstCertificate(std::string_view flag, const std::string& path,
                                             const std::string& text) {
  Certificate certificate(PEM_read_bio_X509(MemoryOf(text).get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr)
    return InvalidArgument("--", flag, ": ", path, " holds no PEM certificate");
  return certificate;
}

// Without a password: nobody is there to be asked for one.
Key FirstKey(const std::string& text) {
  const auto no_password = [](char*, int, int, void*) { return 0; };
  return Key(PEM_read_bio_PrivateKey(MemoryOf(text).get(), nullptr, no_password, nullptr));
}

// The key alone: its file may hold certificates too.
std::string PemOf(EVP_PKEY* key) {
  const Memory memory(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(memory.get(), key, nullptr, nullptr, 0, nullptr, nullptr);
  char* text = nullptr;
  const long size = BIO_get_mem_data(memory.get(), &text);
  return {text, static_cast<size_t>(size)};
}

absl::Status SystemError(std::string_view what) {
  return absl::UnavailableError(StrCat("TLS: ", what, ": ", std::strerror(errno)));
}

}  // namespace

TlsFiles::MemoryFile::~MemoryFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

// Makes another file and puts it in the place of this one.
absl::Status TlsFiles::MemoryFile::Replace(const std::string& content) {
  // Newer kernels may insist that nobody can run it, older ones do not know that flag.
  constexpr unsigned kNoExecute = 8;
  int next = memfd_create("deeppcr-tls", MFD_CLOEXEC | kNoExecute);
  if (next < 0 && errno == EINVAL) next = memfd_create("deeppcr-tls", MFD_CLOEXEC);
  if (next < 0) return SystemError("a file in memory");
  // Readers tell by whole seconds whether a file has changed between two looks.
  const timespec changed = {static_cast<time_t>(++changes_), 0}, times[] = {changed, changed};
  if (write(next, content.data(), content.size()) != static_cast<ssize_t>(content.size()) ||
      fchmod(next, S_IRUSR | S_IWUSR) != 0 || futimens(next, times) != 0) {
    const absl::Status status = SystemError("writing to memory");
    close(next);
    return status;
  }
  if (descriptor_ < 0) {
    descriptor_ = next;
    path_ = StrCat("/proc/self/fd/", descriptor_);
    return absl::OkStatus();
  }
  const bool replaced = dup3(next, descriptor_, O_CLOEXEC) >= 0;
  const absl::Status status = replaced ? absl::OkStatus() : SystemError("replacing a file");
  close(next);
  return status;
}

TlsFiles::TlsFiles(const std::string& key, const std::string& certificate,
                   const std::string& client_authority)
    : key_file_(key),
      certificate_file_(certificate),
      client_authority_file_(client_authority),
      key_watch_(key),
      certificate_watch_(certificate),
      client_authority_watch_(client_authority) {}

absl::StatusOr<std::unique_ptr<TlsFiles>> TlsFiles::Open(const std::string& key,
                                                         const std::string& certificate,
                                                         const std::string& client_authority,
                                                         std::chrono::milliseconds patience) {
  std::unique_ptr<TlsFiles> files(new TlsFiles(key, certificate, client_authority));
  const auto end = std::chrono::steady_clock::now() + patience;
  while (true) {
    const absl::Status status = files->Refresh();
    if (status.ok()) return files;
    if (std::chrono::steady_clock::now() >= end) return status;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

absl::Status TlsFiles::Refresh() {
  pair_is_due_ |= key_watch_.Changed();
  pair_is_due_ |= certificate_watch_.Changed();
  client_authority_is_due_ |= !client_authority_file_.empty() && client_authority_watch_.Changed();
  // Neither waits for the other: who signs clients may be replaced because one is not to be
  // trusted.
  const absl::Status pair = pair_is_due_ ? TakePair() : absl::OkStatus();
  const absl::Status authority =
      client_authority_is_due_ ? TakeClientAuthority() : absl::OkStatus();
  pair_is_due_ = !pair.ok();
  client_authority_is_due_ = !authority.ok();
  if (pair.ok() || authority.ok()) return pair.ok() ? authority : pair;
  return InvalidArgument(pair.message(), "; ", authority.message());
}

// gRPC itself would start with any file and refuse every client.
absl::Status TlsFiles::TakePair() {
  DEEPPCR_ASSIGN_OR_RETURN(const std::string text, ReadLinkedFile(certificate_file_, kMaxPemBytes));
  DEEPPCR_ASSIGN_OR_RETURN(const Certificate certificate,
                           FirstCertificate("tls_cert", certificate_file_, text));
  DEEPPCR_ASSIGN_OR_RETURN(const std::string key_text, ReadLinkedFile(key_file_, kMaxPemBytes));
  const Key key = FirstKey(key_text);
  if (key == nullptr)
    return InvalidArgument("--tls_key: ", key_file_,
                           " holds no PEM private key without a password");
  if (X509_check_private_key(certificate.get(), key.get()) != 1)
    return InvalidArgument("--tls_key: ", key_file_, " is not the key of ", certificate_file_);
  std::tm end = {};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &end) != 1)
    return InvalidArgument("--tls_cert: ", certificate_file_, " has no end");
  DEEPPCR_RETURN_IF_ERROR(pair_.Replace(StrCat(PemOf(key.get()), "\n", text)));
  end_ = int64_t{timegm(&end)};
  return absl::OkStatus();
}

absl::Status TlsFiles::TakeClientAuthority() {
  if (client_authority_file_.empty()) return absl::OkStatus();
  DEEPPCR_ASSIGN_OR_RETURN(const std::string text,
                           ReadLinkedFile(client_authority_file_, kMaxPemBytes));
  DEEPPCR_RETURN_IF_ERROR(FirstCertificate("tls_client_ca", client_authority_file_, text).status());
  return client_authority_.Replace(text);
}

}  // namespace deeppcr
