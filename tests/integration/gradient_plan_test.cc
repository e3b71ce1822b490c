// SPDX-License-Identifier: Apache-2.0
// The way back that the plan chooses, from the real server.
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "tests/integration/gradient_fixture.h"

namespace deeppcr {
namespace {

using testing::ServerProcess;

class GradientPlanTest : public ::testing::Test {
 protected:
  void SetUp() override { testing::WriteRandomModel(folder_.File("models/net/1"), {}); }

  std::unique_ptr<ServerProcess> Start(std::vector<std::string> flags = {}) {
    return ServerProcess::Start(folder_.File("models"), std::move(flags));
  }
  static v1::GetModelResponse Describe(const ServerProcess& server, bool with_file = false) {
    v1::GetModelRequest request;
    request.set_model("net");
    request.set_with_plan_file(with_file);
    v1::GetModelResponse model;
    grpc::ClientContext context;
    EXPECT_TRUE(Connect(server.address())->GetModel(&context, request, &model).ok());
    return model;
  }
  static v1::GradientResponse GoBack(const ServerProcess& server, v1::BackwardWay way) {
    v1::GradientRequest request;
    request.set_model("net");
    *request.mutable_inputs() = MakeRequest().inputs();
    SetTensor({2, kOutputs}, Normals(2 * kOutputs, 4), request.mutable_cotangents());
    request.mutable_options()->set_solver("sequential");
    request.set_way(way);
    v1::GradientResponse response;
    const grpc::Status status = Call(*Connect(server.address()), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  // Writes a plan file in which every way is this one.
  void WritePlan(const std::string& text, const std::string& way) {
    std::ofstream(folder_.File("models/net/1/plan.json"))
        << absl::StrReplaceAll(text, {{"\"way\": \"sequential\"", "\"way\": \"" + way + "\""},
                                      {"\"way\": \"parallel\"", "\"way\": \"" + way + "\""},
                                      {"\"way\":\"sequential\"", "\"way\":\"" + way + "\""},
                                      {"\"way\":\"parallel\"", "\"way\":\"" + way + "\""}});
  }

  testing::TemporaryDirectory folder_;
};

TEST_F(GradientPlanTest, AutoTakesThePlansWay) {
  std::string file;
  {
    const auto server = Start({"--gradients"});
    ASSERT_NE(server, nullptr);
    const v1::GetModelResponse model = Describe(*server, true);
    file = model.plan_file();
    ASSERT_GT(model.plan().entries_size(), 1);
    for (const v1::PlanEntry& entry : model.plan().entries())
      EXPECT_TRUE(entry.way() == "sequential" || entry.way() == "parallel") << entry.way();
    EXPECT_GT(model.plan().entries(0).sequential_way_seconds(), 0);
    EXPECT_GT(model.plan().entries(0).parallel_way_seconds(), 0);
    const v1::GradientResponse chosen = GoBack(*server, v1::BACKWARD_WAY_AUTO);
    EXPECT_EQ(chosen.backward().way(), model.plan().entries(1).way()) << "of two samples";
  }
  for (const std::string way : {"sequential", "parallel"}) {
    WritePlan(file, way);
    const auto server = Start({"--gradients", "--plan=require"});
    ASSERT_NE(server, nullptr);
    ASSERT_TRUE(server->ready()) << server->Log();
    EXPECT_EQ(Describe(*server).plan().source(), "file");
    const v1::GradientResponse chosen = GoBack(*server, v1::BACKWARD_WAY_AUTO);
    EXPECT_EQ(chosen.backward().way(), way);
    const v1::GradientResponse named = GoBack(
        *server, way == "parallel" ? v1::BACKWARD_WAY_PARALLEL : v1::BACKWARD_WAY_SEQUENTIAL);
    EXPECT_EQ(chosen.input_gradients().data(), named.input_gradients().data());
    EXPECT_EQ(GoBack(*server, v1::BACKWARD_WAY_UNSPECIFIED).backward().way(), "sequential");
  }
}

TEST_F(GradientPlanTest, APlanWithoutWaysIsCompletedUnlessItIsRequired) {
  std::string file, id;
  {
    const auto server = Start();
    ASSERT_NE(server, nullptr);
    const v1::GetModelResponse model = Describe(*server, true);
    file = model.plan_file();
    id = model.plan().id();
    EXPECT_EQ(model.plan().entries(0).way(), "");
    EXPECT_FALSE(model.plan().entries(0).has_sequential_way_seconds());
  }
  WritePlan(file, "parallel");  // names no way
  {
    const auto server = Start({"--gradients", "--plan=require"});
    ASSERT_NE(server, nullptr);
    ASSERT_TRUE(server->ready()) << server->Log();
    EXPECT_EQ(Describe(*server).plan().id(), id);
    EXPECT_EQ(Describe(*server).plan().entries(0).way(), "");
    EXPECT_EQ(GoBack(*server, v1::BACKWARD_WAY_AUTO).backward().way(), "sequential");
  }
  const auto server = Start({"--gradients"});
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(Describe(*server).plan().source(), "file");
  EXPECT_NE(Describe(*server).plan().entries(0).way(), "");
  EXPECT_NE(Describe(*server).plan().id(), id);
}

TEST_F(GradientPlanTest, TheCacheKeepsTheWays) {
  const std::string cache = "--plan_cache_dir=" + folder_.File("cache");
  std::filesystem::create_directory(folder_.File("cache"));
  std::string measured;
  ASSERT_NE(Start({cache}), nullptr);
  for (const bool again : {false, true}) {
    const auto server = Start({cache, "--gradients"});
    ASSERT_NE(server, nullptr);
    const v1::Plan plan = Describe(*server).plan();
    EXPECT_EQ(plan.source(), "cache");
    EXPECT_NE(plan.entries(0).way(), "");
    if (again) {
      EXPECT_EQ(plan.SerializeAsString(), measured);
    }
    measured = plan.SerializeAsString();
  }
  // A server without gradients takes it as well.
  const auto server = Start({cache});
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(Describe(*server).plan().source(), "cache");
}

}  // namespace
}  // namespace deeppcr
