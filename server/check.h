// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_CHECK_H_
#define DEEPPCR_SERVER_CHECK_H_

#include <cstdio>

#include "server/config.h"

namespace deeppcr {

// Writes what is wrong with the models in and below config.check, all of it, and with
// config.verbose their step programs. True if there is a model and nothing is wrong.
bool CheckModels(const ServerConfig& config, std::FILE* out);

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_CHECK_H_
