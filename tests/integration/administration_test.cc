// SPDX-License-Identifier: Apache-2.0
// Who may load and unload models: those who show that they may, whatever their address.
#include <sys/stat.h>

#include <csignal>
#include <fstream>

#include "inference/grpc_service.grpc.pb.h"
#include "tests/integration/service_fixture.h"

namespace deeppcr::testing {
namespace {

using V2 = inference::GRPCInferenceService;
using ::testing::Each;
using ::testing::HasSubstr;

class AdministrationTest : public ::testing::Test {
 protected:
  void SetUp() override { WriteRandomModel(repository_.File("net/1"), {}); }

  std::unique_ptr<ServerProcess> Start(std::vector<std::string> flags) {
    return ServerProcess::Start(repository_.path(), std::move(flags));
  }

  // What loads and unloads of both protocols are answered at this address, in that order.
  static std::vector<grpc::StatusCode> Administer(const std::string& address,
                                                  const std::string& token = "") {
    const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
    const auto v1 = v1::DeepPcr::NewStub(channel);
    const auto v2 = V2::NewStub(channel);
    std::vector<grpc::StatusCode> codes;
    const auto call = [&](const auto& send) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
      if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
      codes.push_back(send(&context).error_code());
    };
    v1::LoadModelRequest load;
    load.set_model("net");
    v1::UnloadModelRequest unload;
    unload.set_model("net");
    inference::RepositoryModelLoadRequest load2;
    load2.set_model_name("net");
    inference::RepositoryModelUnloadRequest unload2;
    unload2.set_model_name("net");
    v1::LoadModelResponse loaded;
    v1::UnloadModelResponse unloaded;
    inference::RepositoryModelLoadResponse loaded2;
    inference::RepositoryModelUnloadResponse unloaded2;
    call([&](grpc::ClientContext* context) { return v1->LoadModel(context, load, &loaded); });
    call([&](grpc::ClientContext* context) { return v1->UnloadModel(context, unload, &unloaded); });
    call([&](grpc::ClientContext* context) {
      return v2->RepositoryModelLoad(context, load2, &loaded2);
    });
    call([&](grpc::ClientContext* context) {
      return v2->RepositoryModelUnload(context, unload2, &unloaded2);
    });
    inference::LogSettingsRequest log;
    inference::LogSettingsResponse logs;
    call([&](grpc::ClientContext* context) { return v2->LogSettings(context, log, &logs); });
    return codes;
  }

  TemporaryDirectory repository_, folder_;
  const std::string socket_ = folder_.File("admin.sock");
};

TEST_F(AdministrationTest, NeighboursOfAServerForOtherMachinesMayNot) {
  const auto server = Start({"--listen=0.0.0.0:0"});
  ASSERT_NE(server, nullptr);
  const std::string near = "127.0.0.1:" + std::to_string(server->grpc_port());
  EXPECT_THAT(Administer(near), Each(grpc::StatusCode::PERMISSION_DENIED));
  v1::ForwardResponse response;
  EXPECT_TRUE(Call(*Connect(near), MakeRequest(), &response).ok()) << "the model is still there";
}

TEST_F(AdministrationTest, ClientsOfAServerOnLoopbackMayUnlessItAsksForProof) {
  const auto open = Start({});
  ASSERT_NE(open, nullptr);
  EXPECT_THAT(Administer(open->address()), Each(grpc::StatusCode::OK));
  const auto closed = Start({"--admin=proved"});
  ASSERT_NE(closed, nullptr);
  EXPECT_THAT(Administer(closed->address()), Each(grpc::StatusCode::PERMISSION_DENIED));
}

TEST_F(AdministrationTest, TheirSocketIsForAdministratorsAlone) {
  const std::string shared = folder_.File("shared.sock");
  const auto server =
      Start({"--listen=0.0.0.0:0", "--admin_listen=unix:" + socket_, "--socket=" + shared});
  ASSERT_NE(server, nullptr);
  struct stat status = {};
  ASSERT_EQ(stat(socket_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  ASSERT_EQ(stat(shared.c_str(), &status), 0);
  const mode_t mask = umask(0);
  umask(mask);
  EXPECT_EQ(status.st_mode & 0777, 0777 & ~mask) << "others are let in there as before";

  EXPECT_THAT(Administer("unix:" + shared), Each(grpc::StatusCode::PERMISSION_DENIED));
  v1::ForwardResponse response;
  EXPECT_TRUE(Call(*Connect("unix:" + socket_), MakeRequest(), &response).ok());
  EXPECT_THAT(Administer("unix:" + socket_), Each(grpc::StatusCode::OK));
}

TEST_F(AdministrationTest, TheirSocketNeedsNoToken) {
  const std::string infer = "infer-0123456789abcdef", admin = "admin-0123456789abcdef";
  const std::string tokens = folder_.File("tokens"), shared = folder_.File("shared.sock");
  std::ofstream(tokens) << "infer " << infer << "\nadmin " << admin << "\n";
  const auto server =
      Start({"--token_file=" + tokens, "--admin_listen=unix:" + socket_, "--socket=" + shared});
  ASSERT_NE(server, nullptr);
  for (const std::string& address : {server->address(), "unix:" + shared}) {
    EXPECT_THAT(Administer(address), Each(grpc::StatusCode::UNAUTHENTICATED)) << address;
    EXPECT_THAT(Administer(address, infer), Each(grpc::StatusCode::PERMISSION_DENIED)) << address;
    EXPECT_THAT(Administer(address, admin), Each(grpc::StatusCode::OK)) << address;
  }
  EXPECT_THAT(Administer("unix:" + socket_), Each(grpc::StatusCode::OK));
  server->Signal(SIGTERM);
  EXPECT_EQ(server->Wait(20), 0);
}

// A release: its folder is copied beside the others, and replicas take it by themselves.
TEST_F(AdministrationTest, AServerThatPollsRollsItself) {
  const auto server = Start({"--model_control=poll", "--poll_seconds=1"});
  ASSERT_NE(server, nullptr);
  WriteRandomModel(repository_.File("net/2"), {.seed = 2});
  const auto stub = Connect(server->address());
  v1::GetModelRequest latest;
  latest.set_model("net");
  v1::GetModelResponse model;
  v1::ForwardResponse response;
  for (int i = 0; i < 1000 && model.summary().version() != 2; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    grpc::ClientContext context;
    ASSERT_TRUE(stub->GetModel(&context, latest, &model).ok());
    const grpc::Status status = Call(*stub, MakeRequest(), &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  EXPECT_EQ(model.summary().version(), 2);
  EXPECT_THAT(server->LogOnceItHas("model_retired"), HasSubstr("model_retired"));
  v1::ForwardRequest old = MakeRequest();
  old.set_version(1);
  EXPECT_EQ(Call(*stub, old, &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

// The status of a comparison at this address.
grpc::Status Compare(const std::string& address, v1::CompareResponse* response = nullptr) {
  v1::CompareResponse unread;
  v1::CompareRequest request = LongComparison("net");
  request.set_repetitions(response == nullptr ? 1 : 100);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120));
  return Connect(address)->Compare(&context, request, response == nullptr ? &unread : response);
}

TEST_F(AdministrationTest, ComparisonsAreForWhomTheServerLetsHaveThem) {
  const auto of_admins =
      Start({"--admin=proved", "--compare=admin", "--admin_listen=unix:" + socket_});
  ASSERT_NE(of_admins, nullptr);
  EXPECT_EQ(Compare(of_admins->address()).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  const grpc::Status status = Compare("unix:" + socket_);
  EXPECT_TRUE(status.ok()) << status.error_message();
  const auto of_nobody = Start({"--compare=off"});
  ASSERT_NE(of_nobody, nullptr);
  const grpc::Status refused = Compare(of_nobody->address());
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("--compare=off"));
}

TEST_F(AdministrationTest, AComparisonLastsAsLongAsItMay) {
  WriteRandomModel(repository_.File("net/1"), {.layers = 2048});
  const auto server = Start({"--compare_seconds=1.5"});
  ASSERT_NE(server, nullptr);
  v1::CompareResponse response;
  const grpc::Status status = Compare(server->address(), &response);
  // A machine under load may not make one repetition in that time.
  if (!status.ok()) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(), HasSubstr("longer than the 1.5 seconds"));
    return;
  }
  for (const v1::CompareRow& row : response.rows()) {
    EXPECT_GE(row.repetitions(), 1);
    EXPECT_LT(row.repetitions(), 100);
    EXPECT_GT(row.median_seconds(), 0);
  }
}

TEST_F(AdministrationTest, OneFileIsNotTwoSockets) {
  const Finished finished =
      RunProgram(DEEPPCR_SERVER_BINARY, {"--model_repository=" + repository_.path(),
                                         "--socket=" + socket_, "--admin_listen=unix:" + socket_});
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_THAT(finished.output, HasSubstr("--admin_listen: expected another file"));
}

}  // namespace
}  // namespace deeppcr::testing
