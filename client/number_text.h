// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_NUMBER_TEXT_H_
#define DEEPPCR_CLIENT_NUMBER_TEXT_H_

#include <string>
#include <string_view>

namespace deeppcr {

// Reads the whole of `text` as a decimal number, whatever the locale. False for anything else, for
// values beyond the range of float, and for nan and inf.
bool ParseFiniteFloat(std::string_view text, float* value);

// Appends a float in the fewest digits that read back as the same value.
void AppendShortest(float value, std::string* text);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_NUMBER_TEXT_H_
