// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_INTEGRATION_DOCUMENTED_SERVICE_CONFIG_H_
#define DEEPPCR_TESTS_INTEGRATION_DOCUMENTED_SERVICE_CONFIG_H_

#include <fstream>
#include <sstream>
#include <string>

namespace deeppcr::testing {

// The service config that deploy/README.md tells users to use.
inline std::string DocumentedServiceConfig() {
  std::ifstream file(DEEPPCR_SOURCE_DIR "/deploy/README.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string all = text.str(), fence = "```json\n";
  const size_t begin = all.find(fence), end = all.find("```\n", begin + fence.size());
  return begin == std::string::npos ? ""
                                    : all.substr(begin + fence.size(), end - begin - fence.size());
}

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_INTEGRATION_DOCUMENTED_SERVICE_CONFIG_H_
