// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_GOLDEN_H_
#define DEEPPCR_TESTS_TESTING_GOLDEN_H_

// Data of tests. The README of tests/data/golden says how the golden vectors were made.

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/problem/spec.h"

namespace deeppcr::testing {

// The file `name` of tests/data; if it cannot be read, an empty object and a test failure.
inline nlohmann::json ReadTestJson(const std::string& name) {
  constexpr int64_t kMaxBytes = int64_t{1} << 24;
  const auto text = ReadFile(DEEPPCR_SOURCE_DIR "/tests/data/" + name, kMaxBytes);
  EXPECT_TRUE(text.ok()) << text.status();
  auto parsed = ParseJson(text.value_or("{}"), {.max_bytes = kMaxBytes});
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.value_or(nlohmann::json::object());
}
inline nlohmann::json ReadGolden(const std::string& name) { return ReadTestJson("golden/" + name); }

// The numbers of nested arrays, row-major.
template <class T>
std::vector<T> Flat(const nlohmann::json& value) {
  if (!value.is_array()) return {value.get<T>()};
  std::vector<T> all;
  for (const nlohmann::json& element : value)
    for (const T x : Flat<T>(element)) all.push_back(x);
  return all;
}

inline Activation ActivationOf(const std::string& name) {
  const auto row = std::find_if(std::begin(kActivationNames), std::end(kActivationNames),
                                [&](const ActivationName& n) { return n.name == name; });
  EXPECT_NE(row, std::end(kActivationNames)) << name;
  return row->activation;
}

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_GOLDEN_H_
