// SPDX-License-Identifier: Apache-2.0
#include "client/progress.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

#include "absl/strings/str_format.h"

namespace deeppcr {

ProgressText::ProgressText(std::function<std::string()> text)
    : text_(std::move(text)), thread_([this] { Run(); }) {}

ProgressText::~ProgressText() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void ProgressText::Run() {
  const auto start = std::chrono::steady_clock::now();
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const auto pause = terminal ? std::chrono::milliseconds(500) : std::chrono::milliseconds(5000);
  bool written = false;
  std::unique_lock<std::mutex> lock(mutex_);
  auto wait = std::chrono::milliseconds(2000);
  while (!wake_.wait_for(lock, wait, [this] { return done_; })) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    absl::FPrintF(stderr, "%s%s (%.0f s)%s", terminal ? "\r" : "", text_(), elapsed.count(),
                  terminal ? " " : "\n");
    std::fflush(stderr);
    written = true;
    wait = pause;
  }
  if (written && terminal) absl::FPrintF(stderr, "\n");
}

}  // namespace deeppcr
