// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_FUZZ_JSON_MUTATOR_H_
#define DEEPPCR_TESTS_FUZZ_JSON_MUTATOR_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace deeppcr::fuzz {

// Mutates a JSON text, well-formed or not. Three times of four one or more of its numbers become
// others (one from elsewhere in the text, a neighbour, a number near a power of two); otherwise the
// text is mutated as libFuzzer does it. Blind mutation rarely makes two numbers agree, and
// agreement is what checks of offsets, sizes and dimensions look for.
void MutateJson(std::vector<uint8_t>& text, size_t max_size, std::minstd_rand& random);

}  // namespace deeppcr::fuzz

#endif  // DEEPPCR_TESTS_FUZZ_JSON_MUTATOR_H_
