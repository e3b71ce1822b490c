// SPDX-License-Identifier: Apache-2.0
#include "server/schedule/system_preparer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/fake_engine.h"

namespace deeppcr::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<ServedModel> Served(const std::string& name) {
  return std::make_shared<ServedModel>(name, 1, std::make_shared<FakeModel>(), nullptr);
}

// What happened, in order: "a:3" for a system that was made, "1: OK" for a request that was told.
class Journal {
 public:
  void Add(std::string line) {
    std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
    changed_.notify_all();
  }
  std::vector<std::string> Lines() {
    std::lock_guard lock(mutex_);
    return lines_;
  }
  bool WaitForLines(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10),
                             [&] { return lines_.size() >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
};

class Request final : public SystemPreparer::Waiter {
 public:
  Request(std::string name, Journal* journal) : name_(std::move(name)), journal_(journal) {}
  void Ready(SystemPreparer::Made made) override {
    journal_->Add(name_ + ": " +
                  (made.ok() ? "OK" : absl::StatusCodeToString(made.status().code())));
  }
  CancelToken token;

 private:
  const std::string name_;
  Journal* const journal_;
};

class SystemPreparerTest : public ::testing::Test {
 protected:
  // Has the first system stop at the gate, so that what comes later waits.
  void Block() {
    gate_.Close();
    ASSERT_TRUE(preparer_.Wait(a_, 1, &first_.token, &first_).ok());
    ASSERT_TRUE(gate_.WaitForArrivals(1));
  }
  absl::Status Wait(const std::shared_ptr<ServedModel>& model, int64_t num_steps,
                    Request* request) {
    return preparer_.Wait(model, num_steps, &request->token, request);
  }

  Journal journal_;
  Gate gate_;
  const std::shared_ptr<ServedModel> a_ = Served("a"), b_ = Served("b");
  Request first_{"first", &journal_}, x_{"x", &journal_}, y_{"y", &journal_}, z_{"z", &journal_};
  absl::Status made_;
  SystemPreparer preparer_{
      [this](const ServedModel& model, const SystemKey& key) -> SystemPreparer::Made {
        gate_.Pass();
        journal_.Add(model.name + ":" + std::to_string(key.num_steps));
        if (!made_.ok()) return made_;
        return model.model->Find(key);
      }};
};

TEST_F(SystemPreparerTest, OneSystemIsMadeForAllThatWaitForIt) {
  Block();
  ASSERT_TRUE(Wait(a_, 1, &x_).ok());  // joins the one that is being made
  ASSERT_TRUE(Wait(a_, 2, &y_).ok());
  ASSERT_TRUE(Wait(a_, 2, &z_).ok());

  gate_.Open();
  preparer_.Stop();

  EXPECT_THAT(journal_.Lines(), ElementsAre("a:1", "first: OK", "x: OK", "a:2", "y: OK", "z: OK"));
}

TEST_F(SystemPreparerTest, ModelsTakeTurns) {
  Block();
  Request many[] = {{"2", &journal_}, {"3", &journal_}, {"4", &journal_}};
  for (int64_t i = 0; i < 3; ++i) ASSERT_TRUE(Wait(a_, 2 + i, &many[i]).ok());
  ASSERT_TRUE(Wait(b_, 5, &x_).ok());
  ASSERT_TRUE(Wait(b_, 6, &y_).ok());

  gate_.Open();
  preparer_.Stop();

  EXPECT_THAT(journal_.Lines(), ElementsAre("a:1", "first: OK", "a:2", "2: OK", "b:5", "x: OK",
                                            "a:3", "3: OK", "b:6", "y: OK", "a:4", "4: OK"));
}

TEST_F(SystemPreparerTest, TellsEveryoneTheError) {
  Block();
  ASSERT_TRUE(Wait(a_, 1, &x_).ok());
  made_ = absl::ResourceExhaustedError("no room");

  gate_.Open();
  preparer_.Stop();

  EXPECT_THAT(journal_.Lines(),
              ElementsAre("a:1", "first: RESOURCE_EXHAUSTED", "x: RESOURCE_EXHAUSTED"));
}

TEST_F(SystemPreparerTest, OneModelDoesNotFillTheQueueForOthers) {
  Block();
  std::vector<std::unique_ptr<Request>> requests;
  for (size_t i = 0; i < SystemPreparer::kMaxNumbersPerModel; ++i) {
    requests.push_back(std::make_unique<Request>(std::to_string(i), &journal_));
    ASSERT_TRUE(Wait(a_, 2 + static_cast<int64_t>(i), requests.back().get()).ok());
  }

  const absl::Status refused = Wait(a_, 1000, &x_);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("16 other kinds of steps"));
  EXPECT_TRUE(Wait(a_, 3, &y_).ok());  // somebody waits for this number already
  EXPECT_TRUE(Wait(b_, 1000, &z_).ok());

  gate_.Open();
  preparer_.Stop();
  EXPECT_EQ(Wait(a_, 7, &x_).code(), absl::StatusCode::kUnavailable);
}

TEST_F(SystemPreparerTest, BoundsTheRequestsThatWait) {
  Block();
  std::vector<std::unique_ptr<Request>> requests;
  for (size_t i = 1; i < SystemPreparer::kMaxWaiting; ++i) {
    requests.push_back(std::make_unique<Request>("", &journal_));
    ASSERT_TRUE(Wait(a_, 2, requests.back().get()).ok());
  }

  EXPECT_EQ(Wait(b_, 2, &x_).code(), absl::StatusCode::kResourceExhausted);

  gate_.Open();
  preparer_.Stop();
  EXPECT_EQ(journal_.Lines().size(), 2 + SystemPreparer::kMaxWaiting);
}

// Nobody else has to move for that: the system in progress goes on, and one that nobody waits for
// any more is not made.
TEST_F(SystemPreparerTest, EndsRequestsWhoseTokensFire) {
  Block();
  ASSERT_TRUE(Wait(a_, 2, &x_).ok());
  ASSERT_TRUE(Wait(b_, 2, &y_).ok());

  first_.token.Cancel();
  x_.token.Cancel();

  ASSERT_TRUE(journal_.WaitForLines(2));
  EXPECT_THAT(journal_.Lines(),
              ::testing::UnorderedElementsAre("first: CANCELLED", "x: CANCELLED"));
  gate_.Open();
  preparer_.Stop();
  EXPECT_THAT(journal_.Lines(), ElementsAre(::testing::_, ::testing::_, "a:1", "b:2", "y: OK"));
}

TEST_F(SystemPreparerTest, EndsRequestsAtTheirDeadlines) {
  Block();
  CancelToken limited(CancelToken::Clock::now() + std::chrono::milliseconds(1), &x_.token);
  ASSERT_TRUE(preparer_.Wait(a_, 2, &limited, &x_).ok());

  ASSERT_TRUE(journal_.WaitForLines(1));

  EXPECT_THAT(journal_.Lines(), ElementsAre("x: DEADLINE_EXCEEDED"));
  gate_.Open();
}

}  // namespace
}  // namespace deeppcr::testing
