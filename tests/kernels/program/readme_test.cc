// SPDX-License-Identifier: Apache-2.0
// The documents say what the tables of the code say.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "kernels/base/strings.h"
#include "kernels/program/lower_onnx.h"
#include "kernels/program/op.h"

namespace deeppcr::program {
namespace {

std::string TextOf(const std::string& name) {
  std::ifstream file(std::string(DEEPPCR_SOURCE_DIR) + "/" + name);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ReadmeTest, TheTableOfOperationsIsThatOfTheRows) {
  const std::string readme = TextOf("kernels/program/README.md");
  std::string table;
  for (const OpRow& row : kOps)
    table += StrCat("| `", row.name, "` | ", NameOf(row.kind), " | `", row.formula, "` | ",
                    NameOf(row.bend), " | ", row.ulps, " |\n");
  EXPECT_NE(readme.find("|---|---|---|---|---|\n" + table + "\n"), std::string::npos) << table;
}

// Compares words, as the document breaks lines.
TEST(ReadmeTest, TheListOfOnnxOperatorsIsThatOfTheRows) {
  std::string readme = TextOf("server/README.md");
  for (char& c : readme)
    if (c == '\n') c = ' ';
  EXPECT_NE(readme.find(OnnxOperatorNames() + "."), std::string::npos) << OnnxOperatorNames();
}

}  // namespace
}  // namespace deeppcr::program
