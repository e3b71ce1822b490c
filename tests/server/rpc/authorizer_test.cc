// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/authorizer.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/testing/expect_error.h"
#include "tests/testing/safetensors_writer.h"

namespace deeppcr::testing {
namespace {

constexpr char kInfer[] = "infer-0123456789abcdef", kAdmin[] = "admin-0123456789abcdef";

class AuthorizerTest : public ::testing::Test {
 protected:
  void Write(const std::string& text) { std::ofstream(path_) << text; }
  absl::Status Check(const std::string& header, Role needed = Role::kInfer) const {
    return authorizer_.Check({.header = header}, needed);
  }

  TemporaryDirectory folder_;
  const std::string path_ = folder_.File("tokens");
  Authorizer authorizer_{{.token_file = path_, .admin_names = {"operator"}}};
};

TEST_F(AuthorizerTest, WithoutAFileEverybodyMayDoEverythingIfAdministrationIsOpen) {
  Authorizer open({.open_admin = true});
  EXPECT_TRUE(open.Reload().ok());
  EXPECT_TRUE(open.Check({}, Role::kAdmin).ok());
  EXPECT_TRUE(open.Check({.header = "nonsense"}, Role::kAdmin).ok());
  Authorizer closed({});
  EXPECT_TRUE(closed.Check({}, Role::kInfer).ok());
  ExpectError(closed.Check({}, Role::kAdmin), absl::StatusCode::kPermissionDenied,
              "--admin_listen");
}

TEST_F(AuthorizerTest, ATokenFileClosesAnOpenAdministration) {
  Write(std::string("infer ") + kInfer);
  Authorizer both({.token_file = path_, .open_admin = true});
  ASSERT_TRUE(both.Reload().ok());
  ExpectError(both.Check({}, Role::kAdmin), absl::StatusCode::kUnauthenticated, "Bearer");
  ExpectError(both.Check({.header = std::string("Bearer ") + kInfer}, Role::kAdmin),
              absl::StatusCode::kPermissionDenied, "a token of the role admin");
}

TEST_F(AuthorizerTest, ASocketAndACertificateShowTheRoleAsATokenDoes) {
  Write(std::string("infer ") + kInfer);
  ASSERT_TRUE(authorizer_.Reload().ok());
  EXPECT_TRUE(authorizer_.Check({.admin_socket = true}, Role::kAdmin).ok());
  EXPECT_TRUE(authorizer_.Check({.names = {"robot", "operator"}}, Role::kAdmin).ok());
  EXPECT_TRUE(authorizer_.Check({.names = {"operator"}}, Role::kInfer).ok());
  for (const char* other : {"robot", "", "operator2", "Operator", "operato"})
    ExpectError(authorizer_.Check({.names = {other}}, Role::kInfer),
                absl::StatusCode::kUnauthenticated, "Bearer");
}

TEST_F(AuthorizerTest, TokensHaveRoles) {
  Write(std::string("# of the robots\n\ninfer ") + kInfer + "\r\n  admin " + kAdmin);
  ASSERT_TRUE(authorizer_.Reload().ok());
  EXPECT_TRUE(Check(std::string("Bearer ") + kInfer).ok());
  EXPECT_TRUE(Check(std::string("bearer ") + kAdmin).ok());
  EXPECT_TRUE(Check(std::string("Bearer ") + kAdmin, Role::kAdmin).ok());
  ExpectError(Check(std::string("Bearer ") + kInfer, Role::kAdmin),
              absl::StatusCode::kPermissionDenied, "a token of the role admin");
}

TEST_F(AuthorizerTest, WhatIsNoKnownTokenIsRefused) {
  Write(std::string("infer ") + kInfer);
  ASSERT_TRUE(authorizer_.Reload().ok());
  for (const std::string header : {"", "Bearer ", "Basic abcdef", kInfer})
    ExpectError(Check(header), absl::StatusCode::kUnauthenticated, "authorization: Bearer TOKEN");
  const std::string token = kInfer;
  for (const std::string& wrong :
       {token.substr(1), token + "0", token + " ", std::string(1 << 16, 'a')})
    ExpectError(Check("Bearer " + wrong), absl::StatusCode::kUnauthenticated, "not known");
}

TEST_F(AuthorizerTest, TheGreaterOfTwoRolesCounts) {
  Write(std::string("admin ") + kInfer + "\ninfer " + kInfer + "\n");
  ASSERT_TRUE(authorizer_.Reload().ok());
  EXPECT_TRUE(Check(std::string("Bearer ") + kInfer, Role::kAdmin).ok());
}

TEST_F(AuthorizerTest, AFileThatIsWrongKeepsWhatWasRead) {
  Write(std::string("infer ") + kInfer + "\n");
  ASSERT_TRUE(authorizer_.Reload().ok());
  const std::string secret = "root 0123456789abcdefSECRET";
  for (const std::string& text :
       {secret, std::string("infer short"), std::string("infer\n"), std::string("# none\n"),
        std::string("infer with blanks in the token"), std::string()}) {
    Write("\n" + text);
    const absl::Status status = authorizer_.Reload();
    ExpectError(status, absl::StatusCode::kInvalidArgument, path_.c_str());
    EXPECT_EQ(status.message().find("SECRET"), absl::string_view::npos);
    EXPECT_TRUE(Check(std::string("Bearer ") + kInfer).ok());
  }
  Write("\nroot x\n");
  ExpectError(authorizer_.Reload(), absl::StatusCode::kInvalidArgument, "line 2");
  std::remove(path_.c_str());
  EXPECT_FALSE(authorizer_.Reload().ok());
  EXPECT_TRUE(Check(std::string("Bearer ") + kInfer).ok());
}

TEST_F(AuthorizerTest, TokensMayHaveNamesAndShares) {
  const std::string other = "other-0123456789abcdef";
  Write(std::string("infer ") + kInfer + " name=robot share=0.25\nadmin " + kAdmin + "\ninfer " +
        other + "  share=0.25 name=robot");
  ASSERT_TRUE(authorizer_.Reload().ok());
  const auto robot = authorizer_.ClientOf(std::string("Bearer ") + kInfer);
  ASSERT_NE(robot, nullptr);
  EXPECT_EQ(robot->name, "robot");
  EXPECT_EQ(robot->share, 0.25);
  EXPECT_EQ(authorizer_.ClientOf("Bearer " + other), robot);
  EXPECT_EQ(authorizer_.ClientOf(std::string("Bearer ") + kAdmin), nullptr);
  EXPECT_EQ(authorizer_.ClientOf("Bearer unknown"), nullptr);
  EXPECT_EQ(Authorizer({}).ClientOf(std::string("Bearer ") + kInfer), nullptr);

  // The account, of which requests may hold bytes, stays.
  Write(std::string("infer ") + kInfer + " name=robot share=1e-2");
  ASSERT_TRUE(authorizer_.Reload().ok());
  EXPECT_EQ(authorizer_.ClientOf(std::string("Bearer ") + kInfer), robot);
  EXPECT_EQ(robot->share, 0.01);
}

TEST_F(AuthorizerTest, NamesAndSharesThatMeanNothingAreErrors) {
  const std::string line = std::string("infer ") + kInfer;
  for (const char* rest :
       {" robot", " name=", " name=a/b", " name=r share=0", " name=r share=1.1",
        " name=r share=nan", " name=r share=", " share=0.5", " name=r share=-1", " Name=r"}) {
    Write(line + rest);
    ExpectError(authorizer_.Reload(), absl::StatusCode::kInvalidArgument, "line 1: expected");
  }
  Write(line + " name=r share=0.5\nadmin " + kAdmin + " name=r");
  ExpectError(authorizer_.Reload(), absl::StatusCode::kInvalidArgument,
              "line 2: expected the share that 'r' has");
  Write(line + " name=r\nadmin " + kInfer + " name=s");
  ExpectError(authorizer_.Reload(), absl::StatusCode::kInvalidArgument,
              "line 2: expected the name and share of this token before");
}

TEST_F(AuthorizerTest, SaysWhoCallsWithoutTheToken) {
  Write(std::string("infer ") + kInfer + " name=robot\nadmin " + kAdmin);
  ASSERT_TRUE(authorizer_.Reload().ok());
  EXPECT_EQ(authorizer_.Describe({.header = std::string("Bearer ") + kInfer}), "token of robot");
  EXPECT_EQ(authorizer_.Describe({.header = std::string("Bearer ") + kAdmin}),
            "token without a name");
  EXPECT_EQ(authorizer_.Describe({.names = {"x", "operator"}}), "certificate of operator");
  EXPECT_EQ(authorizer_.Describe({.admin_socket = true}), "socket of --admin_listen");
  EXPECT_EQ(Authorizer({}).Describe({}), "nobody in particular");
}

TEST_F(AuthorizerTest, AReloadTakesTokensAway) {
  Write(std::string("infer ") + kInfer);
  ASSERT_TRUE(authorizer_.Reload().ok());
  Write(std::string("admin ") + kAdmin);
  ASSERT_TRUE(authorizer_.Reload().ok());
  EXPECT_FALSE(Check(std::string("Bearer ") + kInfer).ok());
}

}  // namespace
}  // namespace deeppcr::testing
