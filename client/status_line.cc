// SPDX-License-Identifier: Apache-2.0
#include "client/status_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_format.h"

namespace deeppcr {
namespace {

constexpr size_t kBarWidth = 24;

}  // namespace

std::string BarText(double finished) {
  const auto filled = static_cast<size_t>(kBarWidth * finished);
  return absl::StrFormat("[%s%s]", std::string(filled, '#'), std::string(kBarWidth - filled, '.'));
}

bool StatusLine::Due() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return false;
  next_ = now + std::chrono::milliseconds(100);
  return true;
}

// A full last column would begin a new line.
size_t StatusLine::Width() {
  winsize size = {};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return (known ? size.ws_col : 80) - 1;
}

void StatusLine::Draw(const std::string& text) {
  const std::string wipe(drawn_ - std::min(drawn_, text.size()), ' ');
  absl::FPrintF(stderr, "\r%s%s", text, wipe);
  std::fflush(stderr);
  drawn_ = text.size();
}

void StatusLine::Clear() {
  if (drawn_ == 0) return;
  Draw("");
  absl::FPrintF(stderr, "\r");
}

}  // namespace deeppcr
