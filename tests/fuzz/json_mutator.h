// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_FUZZ_JSON_MUTATOR_H_
#define DEEPPCR_TESTS_FUZZ_JSON_MUTATOR_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace deeppcr::fuzz {

// Mutates a JSON text, well-formed or not: three times of four one or more numbers of it become
// others (one that stands elsewhere in the text, a neighbour, the neighbourhood of a power of two),
// else as libFuzzer does. Blind mutation rarely makes two numbers agree, which is what offsets,
// sizes and dimensions are checked for.
void MutateJson(std::vector<uint8_t>& text, size_t max_size, std::minstd_rand& random);

}  // namespace deeppcr::fuzz

#endif  // DEEPPCR_TESTS_FUZZ_JSON_MUTATOR_H_
