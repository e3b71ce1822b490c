// SPDX-License-Identifier: Apache-2.0
// usage: write_listings FILE
// Writes listings of random programs as C++, for compiled_section_test.cc.
#include <cstdio>
#include <fstream>
#include <span>

#include "kernels/base/strings.h"
#include "kernels/cuda/program/source.h"
#include "tests/kernels/cuda/program/random_program.h"

namespace deeppcr::testing {
namespace {

// Programs that together have every kind of instruction, most operations, and sections of several
// loops; without those that the CPU alone runs.
constexpr int kSeeds[] = {2, 3, 5, 6, 9, 12};

int Write(const char* path) {
  std::ofstream file(path);
  file << "namespace deeppcr::cuda {\n\n";
  std::string all;
  for (const int seed : kSeeds) {
    const ProgramOnExecutor system(seed);
    if (!system.status().ok()) {
      std::fprintf(stderr, "%d: %s\n", seed, system.status().ToString().c_str());
      return 1;
    }
    const cuda::ProgramSection& section = system.section();
    const std::span instructions(section.instructions, static_cast<size_t>(section.count));
    const std::string name = StrCat("Listing", seed);
    file << cuda::ListingOf(name, instructions);
    all += StrCat(all.empty() ? "" : ", ", "Seeded<", name, ", ", seed, ">");
  }
  file << "\ntemplate <class Listing_, int kSeed_>\nstruct Seeded {\n  using Listing = Listing_;\n"
       << "  static constexpr int kSeed = kSeed_;\n};\n\nusing Listings = ::testing::Types<" << all
       << ">;\n\n}  // namespace deeppcr::cuda\n";
  return file.flush().good() ? 0 : 1;
}

}  // namespace
}  // namespace deeppcr::testing

int main(int argc, char** argv) { return argc == 2 ? deeppcr::testing::Write(argv[1]) : 2; }
