// SPDX-License-Identifier: Apache-2.0
#include "client/number_text.h"

#include <charconv>
#include <cmath>
#include <system_error>

namespace deeppcr {

bool ParseFiniteFloat(std::string_view text, float* value) {
  // Parsed as double, so that values below the smallest float become 0 instead of an error.
  double wide = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), wide);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(wide))
    return false;
  *value = static_cast<float>(wide);
  return std::isfinite(*value);
}

void AppendShortest(float value, std::string* text) {
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof(buffer), value);
  if (error == std::errc()) text->append(buffer, end);
}

}  // namespace deeppcr
