// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/trace_collector.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netinet/in.h>

#include <cstring>
#include <string_view>

namespace deeppcr::testing {

// libmicrohttpd calls it first without a body, then with its pieces, then with none.
struct TraceCollector::Handler {
  static MHD_Result Take(void* self, MHD_Connection* connection, const char* url,
                         const char* method, const char*, const char* data, size_t* size,
                         void** state) {
    if (*state == nullptr) {
      *state = new std::string;
      return MHD_YES;
    }
    auto* body = static_cast<std::string*>(*state);
    if (*size > 0) {
      body->append(data, *size);
      *size = 0;
      return MHD_YES;
    }
    const char* type = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Content-Type");
    const bool expected = std::string_view(url) == "/v1/traces" &&
                          std::string_view(method) == "POST" && type != nullptr &&
                          std::string_view(type) == "application/json";
    std::string reply = "no such page", retry_after;
    const int status = expected
                           ? static_cast<TraceCollector*>(self)->Answer(*body, reply, retry_after)
                           : MHD_HTTP_NOT_FOUND;
    MHD_Response* response =
        MHD_create_response_from_buffer(reply.size(), reply.data(), MHD_RESPMEM_MUST_COPY);
    if (!retry_after.empty())
      MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, retry_after.c_str());
    const MHD_Result result =
        MHD_queue_response(connection, static_cast<unsigned>(status), response);
    MHD_destroy_response(response);
    return result;
  }
  static void Forget(void*, MHD_Connection*, void** state, MHD_RequestTerminationCode) {
    delete static_cast<std::string*>(*state);
  }
};

int TraceCollector::Answer(const std::string& body, std::string& reply, std::string& retry_after) {
  std::unique_lock<std::mutex> lock(mutex_);
  ++posts_;
  changed_.notify_all();
  changed_.wait(lock, [this] { return !hold_; });
  int status = MHD_HTTP_OK;
  if (!statuses_.empty()) {
    status = statuses_.front();
    statuses_.erase(statuses_.begin());
  }
  if (status == MHD_HTTP_OK) {
    messages_.push_back(nlohmann::json::parse(body));
    reply = reply_;
  } else {
    retry_after = retry_after_;
  }
  changed_.notify_all();
  return status;
}

TraceCollector::TraceCollector() {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  daemon_ = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD, 0, nullptr, nullptr, &Handler::Take,
                             this, MHD_OPTION_SOCK_ADDR, &address, MHD_OPTION_NOTIFY_COMPLETED,
                             &Handler::Forget, nullptr, MHD_OPTION_END);
}

TraceCollector::~TraceCollector() {
  Hold(false);
  MHD_stop_daemon(daemon_);
}

std::string TraceCollector::endpoint() const {
  const MHD_DaemonInfo* info = MHD_get_daemon_info(daemon_, MHD_DAEMON_INFO_BIND_PORT);
  return "http://127.0.0.1:" + std::to_string(info->port) + "/v1/traces";
}

void TraceCollector::AnswerWith(std::vector<int> statuses) {
  const std::lock_guard<std::mutex> lock(mutex_);
  statuses_ = std::move(statuses);
}

void TraceCollector::SetRetryAfter(std::string seconds) {
  const std::lock_guard<std::mutex> lock(mutex_);
  retry_after_ = std::move(seconds);
}

void TraceCollector::SetReply(std::string reply) {
  const std::lock_guard<std::mutex> lock(mutex_);
  reply_ = std::move(reply);
}

void TraceCollector::Hold(bool hold) {
  const std::lock_guard<std::mutex> lock(mutex_);
  hold_ = hold;
  changed_.notify_all();
}

std::vector<nlohmann::json> TraceCollector::Messages(size_t count) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, std::chrono::seconds(10), [&] { return messages_.size() >= count; });
  return messages_;
}

std::vector<nlohmann::json> TraceCollector::Spans(size_t count) {
  const auto spans = [this] {
    std::vector<nlohmann::json> all;
    for (const nlohmann::json& message : messages_)
      for (const nlohmann::json& span : message["resourceSpans"][0]["scopeSpans"][0]["spans"])
        all.push_back(span);
    return all;
  };
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, std::chrono::seconds(10), [&] { return spans().size() >= count; });
  return spans();
}

int64_t TraceCollector::posts() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return posts_;
}

}  // namespace deeppcr::testing
