// SPDX-License-Identifier: Apache-2.0
#include "server/check.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "kernels/base/strings.h"
#include "kernels/engine.h"
#include "server/models/serving_file.h"

namespace deeppcr {
namespace {

// Levels between a repository and the folder of a version.
constexpr int kMostLevels = 2;

// Folders with a config.json in and below a folder, sorted.
void FindModels(const std::filesystem::path& folder, int levels, std::vector<std::string>* found) {
  std::error_code error;
  if (std::filesystem::exists(folder / "config.json", error)) {
    found->push_back(folder.string());
    return;
  }
  if (levels == 0) return;
  std::vector<std::filesystem::path> below;
  std::filesystem::directory_iterator entries(folder, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    std::error_code unreadable;
    if (entries->is_directory(unreadable)) below.push_back(entries->path());
  }
  std::ranges::sort(below);
  for (const auto& path : below) FindModels(path, levels - 1, found);
}

}  // namespace

bool CheckModels(const ServerConfig& config, std::FILE* out) {
  std::vector<std::string> models;
  FindModels(config.check, kMostLevels, &models);
  if (models.empty()) {
    std::fprintf(out, "%s: no config.json in or below this folder\n", config.check.c_str());
    return false;
  }
  EngineOptions options;
  options.max_model_bytes = config.max_model_bytes;
  options.max_workspace_bytes = config.max_workspace_bytes;
  bool good = true;
  for (const std::string& folder : models) {
    ModelCheck check = CheckModel(folder, options);
    // Beside the versions of a model, or with the files of the only one.
    for (const auto& place :
         {std::filesystem::path(folder).parent_path(), std::filesystem::path(folder)}) {
      const auto serving = ReadServingFile(place, place.filename().string());
      if (!serving.ok()) check.problems.emplace_back(ToStd(serving.status().message()));
    }
    good = good && check.problems.empty();
    std::fprintf(out, "%s: %s\n", folder.c_str(),
                 check.problems.empty() ? "ok"
                 : check.problems.size() == 1
                     ? "1 problem"
                     : (std::to_string(check.problems.size()) + " problems").c_str());
    for (const std::string& problem : check.problems) std::fprintf(out, "  %s\n", problem.c_str());
    for (const std::string& note : check.notes) std::fprintf(out, "  note: %s\n", note.c_str());
    if (config.verbose && !check.listing.empty()) std::fprintf(out, "%s\n", check.listing.c_str());
  }
  return good;
}

}  // namespace deeppcr
