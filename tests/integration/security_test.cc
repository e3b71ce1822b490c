// SPDX-License-Identifier: Apache-2.0
// TLS, client certificates and tokens, with certificates that openssl makes for these tests.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "grpcpp/generic/generic_stub.h"
#include "inference/grpc_service.grpc.pb.h"
#include "tests/integration/certificates.h"
#include "tests/integration/service_fixture.h"

namespace deeppcr::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kPatience(20000), kMoment(300);
constexpr char kInfer[] = "infer-0123456789abcdef", kAdmin[] = "admin-0123456789abcdef";

class SecurityTest : public ::testing::Test {
 protected:
  void SetUp() override { WriteRandomModel(folder_.File("models/net/1"), {}); }

  std::string File(const std::string& name) const { return folder_.File(name); }
  static std::string Contents(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::unique_ptr<ServerProcess> Start(std::vector<std::string> flags) {
    return ServerProcess::Start(File("models"), std::move(flags));
  }
  std::unique_ptr<ServerProcess> StartTls(std::vector<std::string> flags = {}) {
    flags.push_back("--tls_cert=" + File("server.pem"));
    flags.push_back("--tls_key=" + File("server.key"));
    return Start(flags);
  }

  // A stub with a connection of its own; an empty `authority` means plain text.
  std::unique_ptr<v1::DeepPcr::Stub> Connect(const ServerProcess& server,
                                             const std::string& authority,
                                             const std::string& identity) {
    grpc::SslCredentialsOptions tls;
    if (!authority.empty()) tls.pem_root_certs = Contents(File(authority + ".pem"));
    if (!identity.empty()) {
      tls.pem_cert_chain = Contents(File(identity + ".pem"));
      tls.pem_private_key = Contents(File(identity + ".key"));
    }
    grpc::ChannelArguments arguments;
    arguments.SetInt("test.distinct", ++connections_);
    return v1::DeepPcr::NewStub(grpc::CreateCustomChannel(
        server.address(),
        authority.empty() ? grpc::InsecureChannelCredentials() : grpc::SslCredentials(tls),
        arguments));
  }

  grpc::Status Forward(const ServerProcess& server, const std::string& authority,
                       const std::string& identity = "", const std::string& token = "") {
    const auto stub = Connect(server, authority, identity);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    v1::ForwardResponse response;
    return stub->Forward(&context, MakeRequest(), &response);
  }

  grpc::Status Load(const ServerProcess& server, const std::string& authority,
                    const std::string& identity) {
    const auto stub = Connect(server, authority, identity);
    grpc::ClientContext context;
    v1::LoadModelRequest request;
    request.set_model("net");
    v1::LoadModelResponse response;
    return stub->LoadModel(&context, request, &response);
  }

  // How a call ends of which the server gets the headers and, within that time, nothing else.
  static grpc::StatusCode StatusOfHeaders(const std::shared_ptr<grpc::Channel>& channel,
                                          const std::string& method, const std::string& token = "",
                                          std::chrono::milliseconds time = kPatience) {
    grpc::GenericStub stub(channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + time);
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    grpc::CompletionQueue queue;
    const auto call = stub.PrepareCall(&context, method, &queue);
    grpc::Status status;
    call->StartCall(&status);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    call->Finish(&status, &status);
    queue.Next(&tag, &ok);
    return status.error_code();
  }

  TemporaryDirectory folder_;
  int connections_ = 0;
};

TEST_F(SecurityTest, OnlyTlsReachesAServerWithACertificate) {
  MakeAuthority(folder_, "ca");
  MakeAuthority(folder_, "other");
  MakeCertificate(folder_, "server", "ca");
  const auto server = StartTls();
  ASSERT_NE(server, nullptr);
  const grpc::Status good = Forward(*server, "ca");
  EXPECT_TRUE(good.ok()) << good.error_message();
  EXPECT_EQ(Forward(*server, "other").error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Forward(*server, "").error_code(), grpc::StatusCode::UNAVAILABLE);
  const std::string http = "127.0.0.1:" + std::to_string(server->http_port());
  EXPECT_EQ(RunProgram(DEEPPCR_SERVER_BINARY, {"--probe=http://" + http}).exit_code, 0);
  EXPECT_EQ(RunProgram(DEEPPCR_SERVER_BINARY, {"--probe=" + server->address()}).exit_code, 1);
  server->Signal(SIGTERM);
  EXPECT_EQ(server->Wait(20), 0);
  EXPECT_EQ(RunProgram(DEEPPCR_SERVER_BINARY, {"--probe=http://" + http}).exit_code, 1);
}

TEST_F(SecurityTest, ClientsNeedACertificateWhereTheirSignerIsNamed) {
  MakeAuthority(folder_, "ca");
  MakeAuthority(folder_, "clients");
  MakeCertificate(folder_, "server", "ca");
  MakeCertificate(folder_, "robot", "clients");
  MakeCertificate(folder_, "operator", "clients", "operators.example");
  MakeCertificate(folder_, "stranger", "ca");
  const auto server = StartTls(
      {"--tls_client_ca=" + File("clients.pem"), "--admin_names=other.example, operators.example"});
  ASSERT_NE(server, nullptr);
  const grpc::Status good = Forward(*server, "ca", "robot");
  EXPECT_TRUE(good.ok()) << good.error_message();
  EXPECT_EQ(Forward(*server, "ca").error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Forward(*server, "ca", "stranger").error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Load(*server, "ca", "robot").error_code(), grpc::StatusCode::PERMISSION_DENIED);
  const grpc::Status loaded = Load(*server, "ca", "operator");
  EXPECT_TRUE(loaded.ok()) << loaded.error_message();
}

TEST_F(SecurityTest, CallsWithoutATokenEndAtTheirHeaders) {
  std::ofstream(File("tokens")) << "infer " << kInfer << "\n";
  MakeAuthority(folder_, "ca");
  MakeCertificate(folder_, "server", "ca");
  grpc::SslCredentialsOptions tls;
  tls.pem_root_certs = Contents(File("ca.pem"));
  const std::string tokens = "--token_file=" + File("tokens");
  const auto plain = Start({tokens, "--socket=" + File("socket")});
  const auto secret = StartTls({tokens});
  ASSERT_TRUE(plain != nullptr && secret != nullptr);
  const auto insecure = grpc::InsecureChannelCredentials();
  const std::shared_ptr<grpc::Channel> channels[] = {
      grpc::CreateChannel(plain->address(), insecure),
      grpc::CreateChannel(secret->address(), grpc::SslCredentials(tls)),
  };
  for (const auto& channel : channels) {
    for (const char* method : {"/deeppcr.v1.DeepPcr/Forward", "/deeppcr.v1.DeepPcr/LoadModel",
                               "/inference.GRPCInferenceService/ModelStreamInfer",
                               "/inference.GRPCInferenceService/ModelReady"}) {
      EXPECT_EQ(StatusOfHeaders(channel, method), grpc::StatusCode::UNAUTHENTICATED) << method;
      EXPECT_EQ(StatusOfHeaders(channel, method, kInfer, kMoment),
                grpc::StatusCode::DEADLINE_EXCEEDED)
          << method << " waits for its message";
    }
    // Everybody may ask these, so they wait for their message.
    for (const char* method :
         {"/grpc.health.v1.Health/Check", "/inference.GRPCInferenceService/ServerLive"})
      EXPECT_EQ(StatusOfHeaders(channel, method, "", kMoment), grpc::StatusCode::DEADLINE_EXCEEDED)
          << method;
  }
  // No gate stands on a UNIX socket; the stream itself refuses.
  EXPECT_EQ(StatusOfHeaders(grpc::CreateChannel("unix:" + File("socket"), insecure),
                            "/inference.GRPCInferenceService/ModelStreamInfer"),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(plain->Get("/metrics"),
              HasSubstr("deeppcr_requests_total{code=\"UNAUTHENTICATED\",method=\"Forward\","
                        "model=\"\"} 1\n"));
}

TEST_F(SecurityTest, ANewCertificateIsTakenWithoutARestart) {
  MakeAuthority(folder_, "old");
  MakeAuthority(folder_, "new");
  MakeCertificate(folder_, "server", "old");
  const auto server = StartTls();
  ASSERT_NE(server, nullptr);
  ASSERT_TRUE(Forward(*server, "old").ok());
  MakeCertificate(folder_, "server", "new");
  bool taken = false;
  for (int i = 0; i < 100 && !taken; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    taken = Forward(*server, "new").ok();
  }
  EXPECT_TRUE(taken);
  EXPECT_FALSE(Forward(*server, "old").ok());
}

TEST_F(SecurityTest, FilesThatDoNotFitAreClearErrors) {
  MakeAuthority(folder_, "ca");
  MakeCertificate(folder_, "server", "ca");
  MakeCertificate(folder_, "another", "ca");
  const auto start = [&](std::vector<std::string> flags) {
    flags.push_back("--model_repository=" + File("models"));
    flags.push_back("--listen=127.0.0.1:0");
    flags.push_back("--http_listen=127.0.0.1:0");
    return RunProgram(DEEPPCR_SERVER_BINARY, flags);
  };
  const std::string cert = "--tls_cert=" + File("server.pem");
  const Finished pair = start({cert, "--tls_key=" + File("another.key")});
  EXPECT_EQ(pair.exit_code, 1);
  EXPECT_THAT(pair.output, HasSubstr("is not the key of"));
  const Finished no_pem = start({cert, "--tls_key=" + File("server.csr")});
  EXPECT_EQ(no_pem.exit_code, 1);
  EXPECT_THAT(no_pem.output, HasSubstr("holds no PEM private key"));
  const Finished nothing = start({cert, "--tls_key=" + File("none")});
  EXPECT_EQ(nothing.exit_code, 1);
  EXPECT_THAT(nothing.output, HasSubstr("none"));
  const Finished half = start({cert});
  EXPECT_EQ(half.exit_code, 2);
  EXPECT_THAT(half.output, HasSubstr("expected both or none"));
  const Finished lonely = start({"--tls_client_ca=" + File("ca.pem")});
  EXPECT_EQ(lonely.exit_code, 2);
  const Finished clear =
      RunProgram(DEEPPCR_SERVER_BINARY, {"--model_repository=" + File("models"),
                                         "--listen=0.0.0.0:0", "--token_file=" + File("tokens")});
  EXPECT_EQ(clear.exit_code, 2);
  EXPECT_THAT(clear.output, HasSubstr("tokens would cross the network in plain text"));
  const Finished tokens = start({"--token_file=" + File("tokens")});
  EXPECT_EQ(tokens.exit_code, 1);
}

TEST_F(SecurityTest, TokensSayWhoMayDoWhat) {
  const auto write = [&](const std::string& text) { std::ofstream(File("tokens")) << text; };
  write(std::string("infer ") + kInfer + "\nadmin " + kAdmin + "\n");
  const auto server = Start({"--token_file=" + File("tokens")});
  ASSERT_NE(server, nullptr);
  const auto stub = deeppcr::Connect(server->address());
  const auto load = [&](const char* token) {
    v1::LoadModelRequest request;
    request.set_model("net");
    v1::LoadModelResponse response;
    grpc::ClientContext context;
    context.AddMetadata("authorization", std::string("Bearer ") + token);
    return stub->LoadModel(&context, request, &response).error_code();
  };
  EXPECT_EQ(Forward(*server, "").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Forward(*server, "", "", "wrong-0123456789abcdef").error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(Forward(*server, "", "", kInfer).ok());
  EXPECT_TRUE(Forward(*server, "", "", kAdmin).ok());
  EXPECT_EQ(load(kInfer), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(load(kAdmin), grpc::StatusCode::OK);
  // Health checks need no token, as balancers make them.
  EXPECT_EQ(RunProgram(DEEPPCR_SERVER_BINARY, {"--probe=" + server->address()}).exit_code, 0);

  const auto v2 = inference::GRPCInferenceService::NewStub(
      grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials()));
  inference::ModelInferResponse inferred;
  grpc::ClientContext infer, stream_context, ready_context;
  EXPECT_EQ(v2->ModelInfer(&infer, {}, &inferred).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  const auto stream = v2->ModelStreamInfer(&stream_context);
  inference::ModelStreamInferResponse refused;
  EXPECT_FALSE(stream->Read(&refused));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  inference::ServerReadyResponse ready;
  EXPECT_TRUE(v2->ServerReady(&ready_context, {}, &ready).ok());
  EXPECT_TRUE(ready.ready());

  write(std::string("admin ") + kAdmin + "\n");
  server->Signal(SIGHUP);
  for (int i = 0; i < 200 && Forward(*server, "", "", kInfer).ok(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(Forward(*server, "", "", kInfer).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(Forward(*server, "", "", kAdmin).ok());
  server->Signal(SIGTERM);
  EXPECT_EQ(server->Wait(20), 0);
  const std::string log = server->Log();
  EXPECT_THAT(log, HasSubstr("tokens_read"));
  for (const char* secret : {kInfer, kAdmin, "wrong-0123456789abcdef"})
    EXPECT_EQ(log.find(secret), std::string::npos);
}

// A mounted Kubernetes Secret is a folder of links, which move when it changes.
TEST_F(SecurityTest, TokensBehindALinkAreReadAgainWhenItMoves) {
  namespace fs = std::filesystem;
  const auto write = [&](const std::string& name, const char* token) {
    std::ofstream(File(name)) << "infer " << token << "\n";
  };
  write("monday", kInfer);
  write("tuesday", kAdmin);
  fs::create_symlink("monday", File("tokens"));
  const auto server = Start({"--token_file=" + File("tokens")});
  ASSERT_NE(server, nullptr);
  EXPECT_TRUE(Forward(*server, "", "", kInfer).ok());
  fs::create_symlink("tuesday", File("next"));
  fs::rename(File("next"), File("tokens"));
  for (int i = 0; i < 1000 && !Forward(*server, "", "", kAdmin).ok(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(Forward(*server, "", "", kAdmin).ok());
  EXPECT_EQ(Forward(*server, "", "", kInfer).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  // Nonsense takes no tokens away.
  std::ofstream(File("tuesday")) << "nonsense\n";
  EXPECT_THAT(server->LogOnceItHas("tokens_not_read"), HasSubstr("tokens_not_read"));
  EXPECT_TRUE(Forward(*server, "", "", kAdmin).ok());
}

}  // namespace
}  // namespace deeppcr::testing
