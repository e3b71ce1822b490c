// SPDX-License-Identifier: Apache-2.0
// The UNIX socket of --socket: the same service, beside the port.
#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/integration/service_fixture.h"

namespace deeppcr {
namespace {

using ::testing::HasSubstr;

class SocketTest : public ::testing::Test {
 protected:
  SocketTest() { testing::WriteRandomModel(repository_.File("net/1"), {}); }

  std::unique_ptr<testing::ServerProcess> Start(std::vector<std::string> flags = {}) {
    flags.push_back("--socket=" + path_);
    return testing::ServerProcess::Start(repository_.path(), std::move(flags));
  }
  // Runs a second server with this socket, which is expected to refuse to start.
  testing::Finished StartInVain(const std::string& path) {
    return testing::RunProgram(DEEPPCR_SERVER_BINARY,
                               {"--model_repository=" + repository_.path(), "--listen=127.0.0.1:0",
                                "--http_listen=127.0.0.1:0", "--socket=" + path});
  }

  testing::TemporaryDirectory repository_, folder_;
  const std::string path_ = folder_.File("deeppcr.sock");
  const std::string address_ = "unix:" + path_;
};

TEST_F(SocketTest, AnswersAsThePortDoes) {
  const auto server = Start();
  ASSERT_NE(server, nullptr);
  v1::ForwardResponse here, there;

  ASSERT_TRUE(Call(*Connect(address_), MakeRequest(), &here).ok());
  ASSERT_TRUE(Call(*Connect(server->address()), MakeRequest(), &there).ok());

  EXPECT_EQ(here.outputs().data(), there.outputs().data());
  v1::LoadModelRequest load;
  load.set_model("net");
  v1::LoadModelResponse loaded;
  grpc::ClientContext context;
  EXPECT_TRUE(Connect(address_)->LoadModel(&context, load, &loaded).ok());
  EXPECT_EQ(testing::RunProgram(DEEPPCR_SERVER_BINARY, {"--probe=" + address_}).exit_code, 0);
}

TEST_F(SocketTest, ADeadServersSocketIsReplacedAndALivingOnesIsNot) {
  auto server = Start();
  ASSERT_NE(server, nullptr);

  const testing::Finished second = StartInVain(path_);
  EXPECT_EQ(second.exit_code, 1) << second.output;
  EXPECT_THAT(second.output, HasSubstr("is taken"));
  v1::ForwardResponse reply;
  EXPECT_TRUE(Call(*Connect(address_), MakeRequest(), &reply).ok()) << "the first one serves on";

  server.reset();  // killed: its socket stays
  ASSERT_TRUE(std::filesystem::is_socket(path_));
  server = Start();
  ASSERT_NE(server, nullptr);
  EXPECT_TRUE(Call(*Connect(address_), MakeRequest(), &reply).ok());
  server->Signal(SIGTERM);
  EXPECT_EQ(server->Wait(20), 0);
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(SocketTest, OtherFilesAndImpossiblePathsAreRefused) {
  const std::string file = folder_.File("notes.txt");
  std::ofstream(file) << "mine";
  std::filesystem::create_symlink(file, folder_.File("link"));
  const std::string refused[] = {file,
                                 folder_.path(),
                                 folder_.File("link"),
                                 folder_.File("no/such/folder"),
                                 folder_.File(std::string(108, 'x')),
                                 folder_.File("a%20b")};
  for (const std::string& path : refused) {
    const testing::Finished finished = StartInVain(path);
    EXPECT_EQ(finished.exit_code, 1) << path;
    EXPECT_THAT(finished.output, HasSubstr("--socket: "));
  }
  std::string text;
  std::ifstream(file) >> text;
  EXPECT_EQ(text, "mine");
}

TEST_F(SocketTest, TokensAreAskedForThereToo) {
  const std::string token = "0123456789abcdef";
  const std::string tokens = folder_.File("tokens");
  std::ofstream(tokens) << "infer " << token << "\n";
  const auto server = Start({"--token_file=" + tokens});
  ASSERT_NE(server, nullptr);
  v1::ForwardResponse reply;
  const auto stub = Connect(address_);

  EXPECT_EQ(Call(*stub, MakeRequest(), &reply).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer " + token);
  EXPECT_TRUE(stub->Forward(&context, MakeRequest(), &reply).ok());
}

}  // namespace
}  // namespace deeppcr
