// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_PROGRESS_H_
#define DEEPPCR_CLIENT_PROGRESS_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace deeppcr {

// Says on standard error how far something is, once it takes longer than two seconds: a line that
// renews itself on a terminal, a line every five seconds elsewhere. Ends with its scope.
class Progress {
 public:
  // `text` is called from another thread; it makes the line, without its end.
  explicit Progress(std::function<std::string()> text);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

 private:
  void Run();

  const std::function<std::string()> text_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::thread thread_;  // last: it uses what is above
};

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_PROGRESS_H_
