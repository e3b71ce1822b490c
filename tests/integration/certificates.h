// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_INTEGRATION_CERTIFICATES_H_
#define DEEPPCR_TESTS_INTEGRATION_CERTIFICATES_H_

// Certificates that openssl makes for a test, in a folder of its own.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/server_process.h"

namespace deeppcr::testing {

inline void OpenSsl(const std::vector<std::string>& arguments) {
  const Finished finished = RunProgram("/usr/bin/openssl", arguments);
  ASSERT_EQ(finished.exit_code, 0) << finished.output;
}

// Makes NAME.pem and NAME.key, self-signed.
inline void MakeAuthority(const TemporaryDirectory& folder, const std::string& name) {
  OpenSsl({"req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=" + name,
           "-keyout", folder.File(name + ".key"), "-out", folder.File(name + ".pem")});
}

// Makes NAME.pem and NAME.key for this host, signed by the authority.
inline void MakeCertificate(const TemporaryDirectory& folder, const std::string& name,
                            const std::string& authority, const std::string& host = "localhost") {
  OpenSsl({"req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=" + host, "-addext",
           "subjectAltName=DNS:" + host + ",IP:127.0.0.1", "-keyout", folder.File(name + ".key"),
           "-out", folder.File(name + ".csr")});
  OpenSsl({"x509", "-req", "-days", "2", "-in", folder.File(name + ".csr"), "-CA",
           folder.File(authority + ".pem"), "-CAkey", folder.File(authority + ".key"),
           "-CAcreateserial", "-copy_extensions", "copy", "-out", folder.File(name + ".pem")});
}

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_INTEGRATION_CERTIFICATES_H_
