// SPDX-License-Identifier: Apache-2.0
// Tries every file of a corpus without a fuzzer. File names give the expected result, accepted-* or
// refused-*; other files, for instance from the fuzzer, need only hold the target's properties.

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz_target.h"

namespace {

std::string Contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Copies the contents to the heap at their exact size, so that AddressSanitizer sees a read beyond
// the end.
bool TryExactly(const std::string& contents) {
  const std::vector<char> exact(contents.begin(), contents.end());
  return deeppcr::fuzz::TryInput({exact.data(), exact.size()});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s CORPUS_DIRECTORY\n", argv[0]);
    return 2;
  }
  std::set<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) paths.insert(entry.path());
  int accepted = 0;
  int wrong = 0;
  for (const std::filesystem::path& path : paths) {
    const std::string name = path.filename().string();
    std::printf("%s\n", name.c_str());
    std::fflush(stdout);  // names the file in case of a crash
    const bool ok = TryExactly(Contents(path));
    accepted += ok ? 1 : 0;
    if (name.starts_with("accepted-") && !ok) ++wrong, std::printf("  was refused\n");
    if (name.starts_with("refused-") && ok) ++wrong, std::printf("  was accepted\n");
  }
  std::printf("%zu files, %d accepted, %d against their names\n", paths.size(), accepted, wrong);
  // A corpus without both kinds would prove little.
  const bool both = accepted > 0 && accepted < static_cast<int>(paths.size());
  return wrong == 0 && both ? 0 : 1;
}
