// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/health_service.h"

#include <string>
#include <utility>

namespace deeppcr {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

namespace {

// The name in a request; nothing if it is none.
std::optional<std::string> NameIn(const grpc::ByteBuffer& request) {
  if (request.Length() > kMaxHealthRequestBytes) return std::nullopt;
  // Deserializing takes the bytes away, which are gRPC's.
  grpc::ByteBuffer bytes = request;
  HealthCheckRequest parsed;
  if (!grpc::SerializationTraits<HealthCheckRequest>::Deserialize(&bytes, &parsed).ok())
    return std::nullopt;
  return parsed.service();
}

grpc::Status NoRequest() {
  return {grpc::StatusCode::INVALID_ARGUMENT,
          "expected a grpc.health.v1.HealthCheckRequest of at most " +
              std::to_string(kMaxHealthRequestBytes) + " bytes"};
}

grpc::ByteBuffer MessageOf(HealthCheckResponse::ServingStatus status) {
  HealthCheckResponse response;
  response.set_status(status);
  const grpc::Slice slice(response.SerializeAsString());
  return {&slice, 1};
}

}  // namespace

// A call of Watch. What gRPC is to do is decided under the service's lock and done without it,
// since gRPC may call back at once. A watcher lives until OnDone, which comes after Finish, and
// Finish is not decided while a message is on its way.
class HealthService::Watcher final : QueuedEvents {
 public:
  Watcher(HealthService& service, std::string name, StreamOfQueue* call)
      : service_(service), name_(std::move(name)), call_(*call) {
    call_.ReportTo(this);
  }

  // True if a message is to be written now, which has been made. The caller holds the lock.
  bool TakeMessage() {
    const Status now = service_.Find(name_).value_or(HealthCheckResponse::SERVICE_UNKNOWN);
    if (writing_ || over_ || sent_ == now) return false;
    writing_ = true;
    sent_ = now;
    message_ = MessageOf(now);
    return true;
  }
  void Write() { call_.Write(message_); }

 private:
  void OnWriteDone(bool ok) override {
    bool writes = false, finishes = false;
    {
      const std::lock_guard lock(service_.mutex_);
      writing_ = false;
      cancelled_ = cancelled_ || !ok;
      finishes = TakeEnd();
      writes = !finishes && TakeMessage();
    }
    if (writes) Write();
    if (finishes) call_.Finish(grpc::Status::CANCELLED);
  }
  void OnCancel() override {
    bool finishes = false;
    {
      const std::lock_guard lock(service_.mutex_);
      cancelled_ = true;
      finishes = TakeEnd();
    }
    if (finishes) call_.Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override {
    {
      const std::lock_guard lock(service_.mutex_);
      service_.watchers_.erase(this);
    }
    delete this;
  }
  // True if the call is to be finished now. The caller holds the lock.
  bool TakeEnd() {
    if (!cancelled_ || writing_ || over_) return false;
    over_ = true;
    return true;
  }

  HealthService& service_;
  const std::string name_;
  StreamOfQueue& call_;
  grpc::ByteBuffer message_;
  std::optional<Status> sent_;
  bool writing_ = false, cancelled_ = false, over_ = false;
};

std::optional<HealthService::Status> HealthService::Find(std::string_view name) const {
  const auto found = statuses_.find(name);
  if (found == statuses_.end()) return std::nullopt;
  return found->second ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

void HealthService::Publish(Statuses statuses) {
  std::vector<Watcher*> told;
  {
    const std::lock_guard lock(mutex_);
    statuses_ = std::move(statuses);
    for (Watcher* watcher : watchers_)
      if (watcher->TakeMessage()) told.push_back(watcher);
  }
  for (Watcher* watcher : told) watcher->Write();
}

std::vector<QueuedMethod> HealthService::Methods() {
  return {Queued(this, &HealthService::RequestCheck,
                 std::bind_front(&HealthService::AnswerCheck, this)),
          Queued(this, &HealthService::RequestWatch,
                 std::bind_front(&HealthService::AnswerWatch, this))};
}

void HealthService::AnswerCheck(UnaryCallOfQueue* call) {
  const std::optional<std::string> name = NameIn(*call->request());
  if (!name.has_value()) return call->Finish(NoRequest());
  std::optional<Status> status;
  {
    const std::lock_guard lock(mutex_);
    status = Find(*name);
  }
  if (!status.has_value())
    return call->Finish({grpc::StatusCode::NOT_FOUND, "nothing of this name is known"});
  call->FinishWith(MessageOf(*status));
}

void HealthService::AnswerWatch(StreamOfQueue* call) {
  std::optional<std::string> name = NameIn(*call->request());
  if (!name.has_value()) return call->Finish(NoRequest());
  auto* watcher = new Watcher(*this, *std::move(name), call);
  {
    const std::lock_guard lock(mutex_);
    watchers_.insert(watcher);
    watcher->TakeMessage();
  }
  watcher->Write();
}

}  // namespace deeppcr
