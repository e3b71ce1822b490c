// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_BASE_LOAD_PROGRESS_H_
#define DEEPPCR_KERNELS_BASE_LOAD_PROGRESS_H_

#include <cstdint>
#include <functional>
#include <string_view>

namespace deeppcr {

// Progress of a load, for logs, in words: the step that is being done, or a problem that the load
// goes on without solving.
enum class LoadNews : uint8_t { kStep, kProblem };
using LoadProgress = std::function<void(LoadNews, std::string_view)>;

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_BASE_LOAD_PROGRESS_H_
