// SPDX-License-Identifier: Apache-2.0
#include "server/observe/span_exporter.h"

#include <curl/curl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "server/observe/otlp_json.h"

namespace deeppcr {
namespace {

using Clock = RequestTrace::Clock;
using std::chrono::milliseconds;

// Spans that may wait to be sent; those beyond are dropped.
constexpr size_t kMaxWaitingBytes = size_t{4} << 20;
// Collectors take messages of a few megabytes.
constexpr size_t kBatchBytes = size_t{1} << 20;
constexpr milliseconds kFirstPause{500}, kPatience{1000};
constexpr std::chrono::seconds kMostPause{30};
constexpr int kAttempts = 4;
constexpr long kConnectMilliseconds = 5000, kSendMilliseconds = 10000;
constexpr size_t kMaxReplyBytes = size_t{64} << 10;

absl::Status CheckEndpoint(const std::string& endpoint) {
  const std::unique_ptr<CURLU, void (*)(CURLU*)> url(curl_url(), curl_url_cleanup);
  const auto has = [&](CURLUPart part, std::string_view first, std::string_view second) {
    char* text = nullptr;
    if (curl_url_get(url.get(), part, &text, 0) != CURLUE_OK) return false;
    const std::string value = text;
    curl_free(text);
    return first.empty() || value == first || value == second;
  };
  const bool is_url = curl_url_set(url.get(), CURLUPART_URL, endpoint.c_str(), 0) == CURLUE_OK &&
                      has(CURLUPART_SCHEME, "http", "https");
  if (is_url && !has(CURLUPART_USER, "", "") && !has(CURLUPART_PASSWORD, "", ""))
    return absl::OkStatus();
  // The text may hold a password.
  return absl::InvalidArgumentError(
      "--otlp_traces_endpoint: expected a URL as http://collector:4318/v1/traces, without a user "
      "or a password");
}

// Ends a reply that is longer than any should be; what it says is then its status alone.
size_t Append(char* data, size_t size, size_t count, void* text) {
  auto& reply = *static_cast<std::string*>(text);
  if (reply.size() + size * count > kMaxReplyBytes) return 0;
  reply.append(data, size * count);
  return size * count;
}

}  // namespace

class SpanExporter::Sender {
 public:
  explicit Sender(Options options)
      : options_(std::move(options)),
        frame_(SpanFrame(options_.version, ids_)),
        headers_(curl_slist_append(nullptr, "Content-Type: application/json"), curl_slist_free_all),
        handle_(curl_easy_init(), curl_easy_cleanup) {
    SetUp();
    thread_ = std::thread([this] { Run(); });
  }
  ~Sender() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      end_ = Clock::now() + kPatience;
    }
    changed_.notify_all();
    thread_.join();
  }

  void Write(const RequestTrace& request) {
    Spans spans = SpansOf(request, ids_);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (bytes_ + spans.json.size() > kMaxWaitingBytes) {
        unqueued_ += spans.count;
        return;
      }
      bytes_ += spans.json.size();
      if (waiting_.empty()) since_ = Clock::now();
      waiting_.push_back(std::move(spans));
      if (bytes_ < kBatchBytes) return;
    }
    changed_.notify_all();
  }

  Counts counts() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return {.sent = sent_, .dropped = dropped_ + unqueued_};
  }

 private:
  enum class Outcome { kTaken, kTryAgain, kRefused };

  void SetUp() {
    CURL* const handle = handle_.get();
    curl_easy_setopt(handle, CURLOPT_URL, options_.endpoint.c_str());
    curl_easy_setopt(handle, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(handle, CURLOPT_HTTPHEADER, headers_.get());
    curl_easy_setopt(handle, CURLOPT_USERAGENT, "deeppcr-server");
    curl_easy_setopt(handle, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(handle, CURLOPT_QUICK_EXIT, 1L);  // leaves a name that is being looked up
    curl_easy_setopt(handle, CURLOPT_CONNECTTIMEOUT_MS, kConnectMilliseconds);
    curl_easy_setopt(handle, CURLOPT_TIMEOUT_MS, kSendMilliseconds);
    curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, &Append);
    curl_easy_setopt(handle, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(handle, CURLOPT_XFERINFODATA, this);
    curl_easy_setopt(
        handle, CURLOPT_XFERINFOFUNCTION,
        +[](void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
          return static_cast<Sender*>(self)->IsOver() ? 1 : 0;
        });
  }

  bool IsOver() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return Clock::now() > end_;
  }
  bool leaving() const { return end_ != Clock::time_point::max(); }
  bool IsDue() const {
    return !waiting_.empty() &&
           (leaving() || bytes_ >= kBatchBytes || Clock::now() - since_ >= options_.gather);
  }

  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait_for(lock, options_.gather, [this] { return leaving() || IsDue(); });
      if (IsDue()) SendBatch(lock);
      if (leaving() && waiting_.empty()) return;
    }
  }

  // Takes what fits in a message from the front, and sends it without the lock.
  void SendBatch(std::unique_lock<std::mutex>& lock) {
    Spans batch;
    size_t taken = 0;
    while (taken < waiting_.size() && batch.json.size() < kBatchBytes) {
      if (taken > 0) batch.json += ",";
      batch.json += waiting_[taken].json;
      batch.count += waiting_[taken].count;
      ++taken;
    }
    const int64_t unqueued = std::exchange(unqueued_, 0);
    dropped_ += unqueued;
    lock.unlock();
    if (unqueued > 0) options_.lost(unqueued, "more came than the collector took");
    std::string why;
    const int64_t lost = Send(frame_.first + batch.json + frame_.second, batch.count, why);
    if (lost > 0) options_.lost(lost, why);
    lock.lock();
    // Until then they count against the memory of the queue.
    for (size_t i = 0; i < taken; ++i) bytes_ -= waiting_[i].json.size();
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(taken));
    since_ = Clock::now();
    sent_ += batch.count - lost;
    dropped_ += lost;
  }

  // The number of spans that did not get there, and why.
  int64_t Send(const std::string& message, int64_t count, std::string& why) {
    milliseconds pause = kFirstPause;
    for (int attempt = 1;; ++attempt, pause *= 2) {
      int64_t rejected = 0;
      const Outcome outcome = Post(message, rejected, why);
      if (outcome == Outcome::kTaken) return std::clamp<int64_t>(rejected, 0, count);
      if (outcome == Outcome::kRefused || attempt == kAttempts) return count;
      if (!Pause(std::max(pause, AskedPause()))) return count;
    }
  }

  // The pause that the last reply asked for by Retry-After, or none; at most kMostPause.
  milliseconds AskedPause() const {
    curl_off_t seconds = 0;
    curl_easy_getinfo(handle_.get(), CURLINFO_RETRY_AFTER, &seconds);
    return std::chrono::seconds(std::clamp<curl_off_t>(seconds, 0, kMostPause.count()));
  }

  // False if the exporter leaves.
  bool Pause(milliseconds length) {
    std::unique_lock<std::mutex> lock(mutex_);
    return !changed_.wait_for(lock, length, [this] { return leaving(); });
  }

  Outcome Post(const std::string& message, int64_t& rejected, std::string& why) {
    CURL* const handle = handle_.get();
    std::string reply;
    curl_easy_setopt(handle, CURLOPT_POSTFIELDS, message.data());
    curl_easy_setopt(handle, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(message.size()));
    curl_easy_setopt(handle, CURLOPT_WRITEDATA, &reply);
    const CURLcode code = curl_easy_perform(handle);
    if (code != CURLE_OK && code != CURLE_WRITE_ERROR) {
      why = curl_easy_strerror(code);
      return Outcome::kTryAgain;
    }
    long status = 0;
    curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
    if (status >= 200 && status < 300) {
      rejected = RejectedSpans(reply);
      why = "the collector rejected them";
      return Outcome::kTaken;
    }
    why = StrCat("the collector answered ", status);
    const bool later = status == 429 || status == 502 || status == 503 || status == 504;
    return later ? Outcome::kTryAgain : Outcome::kRefused;
  }

  SpanIds ids_;
  const Options options_;
  const std::pair<std::string, std::string> frame_;
  const std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers_;
  const std::unique_ptr<CURL, void (*)(CURL*)> handle_;  // the thread's

  std::mutex mutex_;
  std::condition_variable changed_;
  // The members below are guarded by mutex_. Only the thread takes from waiting_.
  std::vector<Spans> waiting_;
  size_t bytes_ = 0;
  Clock::time_point since_{};  // when the first of waiting_ came
  Clock::time_point end_ = Clock::time_point::max();
  int64_t sent_ = 0, dropped_ = 0, unqueued_ = 0;

  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<SpanExporter>> SpanExporter::Create(Options options) {
  static const CURLcode ready = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (ready != CURLE_OK) return absl::InternalError(curl_easy_strerror(ready));
  DEEPPCR_RETURN_IF_ERROR(CheckEndpoint(options.endpoint));
  return std::unique_ptr<SpanExporter>(
      new SpanExporter(std::make_unique<Sender>(std::move(options))));
}

SpanExporter::SpanExporter(std::unique_ptr<Sender> sender) : sender_(std::move(sender)) {}
SpanExporter::~SpanExporter() = default;

void SpanExporter::Write(const RequestTrace& request) { sender_->Write(request); }
SpanExporter::Counts SpanExporter::counts() const { return sender_->counts(); }

}  // namespace deeppcr
