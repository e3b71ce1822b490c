// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_PROGRESS_H_
#define DEEPPCR_CLIENT_PROGRESS_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace deeppcr {

// Shows progress on standard error while the object lives, from the third second on: on a terminal
// one line that is rewritten, elsewhere a line every five seconds.
class ProgressText {
 public:
  // `text` returns the line, without its end; it is called from another thread.
  explicit ProgressText(std::function<std::string()> text);
  ~ProgressText();
  ProgressText(const ProgressText&) = delete;
  ProgressText& operator=(const ProgressText&) = delete;

 private:
  void Run();

  const std::function<std::string()> text_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_PROGRESS_H_
