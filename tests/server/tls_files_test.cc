// SPDX-License-Identifier: Apache-2.0
#include "server/tls_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/stat.h>

#include <atomic>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/integration/certificates.h"
#include "tests/testing/expect_error.h"

namespace deeppcr::testing {
namespace {

using absl::StatusCode;

std::string ContentOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Whether a PEM text begins with the key of its first certificate, as gRPC reads both.
bool IsPair(const std::string& text) {
  const auto memory = [&] { return BIO_new_mem_buf(text.data(), static_cast<int>(text.size())); };
  BIO *of_key = memory(), *of_certificate = memory();
  EVP_PKEY* key = PEM_read_bio_PrivateKey(of_key, nullptr, nullptr, nullptr);
  X509* certificate = PEM_read_bio_X509_AUX(of_certificate, nullptr, nullptr, nullptr);
  const bool fits =
      key != nullptr && certificate != nullptr && X509_check_private_key(certificate, key) == 1;
  X509_free(certificate);
  EVP_PKEY_free(key);
  BIO_free_all(of_key);
  BIO_free_all(of_certificate);
  return fits;
}

class TlsFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    MakeAuthority(folder_, "ca");
    for (const char* name : {"first", "second"}) MakeCertificate(folder_, name, "ca");
    Use("first", ".key");
    Use("first", ".pem");
  }
  // Replaces the server's file of this kind by another one.
  void Use(const std::string& name, const std::string& kind) {
    std::filesystem::copy_file(folder_.File(name + kind), folder_.File("next"));
    std::filesystem::rename(folder_.File("next"), folder_.File("server" + kind));
  }
  absl::StatusOr<std::unique_ptr<TlsFiles>> Open(
      const std::string& authority = "",
      std::chrono::milliseconds patience = std::chrono::milliseconds(0)) {
    return TlsFiles::Open(folder_.File("server.key"), folder_.File("server.pem"),
                          authority.empty() ? "" : folder_.File(authority), patience);
  }
  std::string Pem(const std::string& name) { return ContentOf(folder_.File(name + ".pem")); }

  TemporaryDirectory folder_;
};

TEST_F(TlsFilesTest, AFileHoldsTheKeyAndTheCertificates) {
  const auto files = *Open();
  const std::string text = ContentOf(files->pair_path());
  EXPECT_TRUE(IsPair(text));
  EXPECT_THAT(text, ::testing::EndsWith(Pem("first")));
  EXPECT_EQ(files->client_authority_path(), "");
  // For two days.
  EXPECT_NEAR(static_cast<double>(files->end() - std::time(nullptr)), 2 * 86400.0, 3600);
}

TEST_F(TlsFilesTest, AKeyWithoutItsCertificateIsNotTaken) {
  const auto files = *Open();
  const std::string first = ContentOf(files->pair_path());
  Use("second", ".key");
  for (int look = 0; look < 3; ++look) {
    ExpectError(files->Refresh(), StatusCode::kInvalidArgument, "is not the key of");
    EXPECT_EQ(ContentOf(files->pair_path()), first);
  }
  Use("second", ".pem");
  EXPECT_TRUE(files->Refresh().ok());
  const std::string second = ContentOf(files->pair_path());
  EXPECT_NE(second, first);
  EXPECT_TRUE(IsPair(second));
  EXPECT_THAT(second, ::testing::EndsWith(Pem("second")));
}

// A server that starts while they are replaced waits for the second one.
TEST_F(TlsFilesTest, AServerMayStartInBetween) {
  Use("second", ".key");
  ExpectError(Open().status(), StatusCode::kInvalidArgument, "is not the key of");
  std::thread renewal([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    Use("second", ".pem");
  });
  const auto files = Open("", std::chrono::seconds(60));
  renewal.join();
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_THAT(ContentOf((*files)->pair_path()), ::testing::EndsWith(Pem("second")));
}

TEST_F(TlsFilesTest, FilesThatAreNoneOrGoneAreNotTaken) {
  const auto files = *Open("ca.pem");
  const std::string first = ContentOf(files->pair_path());
  std::ofstream(folder_.File("server.pem")) << "-----BEGIN CERTIFICATE-----\nAAAA\n";
  ExpectError(files->Refresh(), StatusCode::kInvalidArgument, "holds no PEM certificate");
  std::filesystem::remove(folder_.File("server.pem"));
  EXPECT_FALSE(files->Refresh().ok());
  Use("first", ".pem");
  EXPECT_TRUE(files->Refresh().ok());
  std::ofstream(folder_.File("ca.pem")) << "nothing";
  ExpectError(files->Refresh(), StatusCode::kInvalidArgument, "--tls_client_ca: ");
  EXPECT_EQ(ContentOf(files->pair_path()), first);
  EXPECT_THAT(ContentOf(files->client_authority_path()), ::testing::HasSubstr("CERTIFICATE"));
}

// Who signs clients may be replaced because one is not to be trusted any more.
TEST_F(TlsFilesTest, NeitherPartWaitsForTheOther) {
  MakeAuthority(folder_, "other");
  std::filesystem::copy_file(folder_.File("ca.pem"), folder_.File("clients.pem"));
  const auto files = *Open("clients.pem");
  Use("second", ".key");
  std::ofstream(folder_.File("clients.pem")) << Pem("other");
  ExpectError(files->Refresh(), StatusCode::kInvalidArgument, "is not the key of");
  EXPECT_EQ(ContentOf(files->client_authority_path()), Pem("other"));
  std::ofstream(folder_.File("clients.pem")) << "nothing";
  ExpectError(files->Refresh(), StatusCode::kInvalidArgument, "; --tls_client_ca: ");
  Use("second", ".pem");
  ExpectError(files->Refresh(), StatusCode::kInvalidArgument, "--tls_client_ca: ");
  EXPECT_THAT(ContentOf(files->pair_path()), ::testing::EndsWith(Pem("second")));
}

TEST_F(TlsFilesTest, OneFileMayHoldBoth) {
  const std::string both = folder_.File("both.pem");
  std::ofstream(both) << Pem("first") << ContentOf(folder_.File("first.key")) << Pem("ca");
  const auto files = TlsFiles::Open(both, both, "", std::chrono::milliseconds(0));
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_TRUE(IsPair(ContentOf((*files)->pair_path())));
}

// A reader in two steps, as gRPC's: whatever it reads between two equal times of change fits.
TEST_F(TlsFilesTest, NobodySeesHalfOfAChange) {
  const auto files = *Open();
  const auto changed = [&] {
    struct stat status = {};
    EXPECT_EQ(stat(files->pair_path().c_str(), &status), 0);
    return status.st_mtime;
  };
  std::atomic<bool> done{false};
  std::atomic<int> read{0}, torn{0};
  std::thread reader([&] {
    while (!done.load()) {
      const auto before = changed();
      const std::string one = ContentOf(files->pair_path());
      const std::string other = ContentOf(files->pair_path());
      if (changed() != before) continue;
      ++read;
      if (one != other || !IsPair(one)) ++torn;
    }
  });
  for (int i = 0; i < 300; ++i) {
    const std::string name = i % 2 == 0 ? "second" : "first";
    Use(name, ".key");
    EXPECT_FALSE(files->Refresh().ok());
    Use(name, ".pem");
    EXPECT_TRUE(files->Refresh().ok());
  }
  done.store(true);
  reader.join();
  EXPECT_GT(read, 10);
  EXPECT_EQ(torn, 0);
}

}  // namespace
}  // namespace deeppcr::testing
