// SPDX-License-Identifier: Apache-2.0
#include "server/rest/route.h"

#include <array>
#include <span>
#include <vector>

namespace deeppcr {
namespace {

constexpr size_t kMostParts = 8;

// The parts of a path between its slashes; none of an empty part or of more than kMostParts.
std::vector<std::string_view> PartsOf(std::string_view path) {
  std::vector<std::string_view> parts;
  while (!path.empty()) {
    if (path.front() != '/' || parts.size() == kMostParts) return {};
    path.remove_prefix(1);
    const std::string_view part = path.substr(0, path.find('/'));
    if (part.empty()) return {};
    parts.push_back(part);
    path.remove_prefix(part.size());
  }
  return parts;
}

struct Ending {
  std::string_view name;
  RestMethod method;
  bool posts;
};
constexpr std::array kOfModels = {
    Ending{"ready", RestMethod::kModelReady, false}, Ending{"config", RestMethod::kConfig, false},
    Ending{"stats", RestMethod::kStatistics, false}, Ending{"infer", RestMethod::kInfer, true}};
constexpr std::array kOfRepository = {Ending{"load", RestMethod::kLoad, true},
                                      Ending{"unload", RestMethod::kUnload, true}};

std::optional<Route> EndingIn(std::span<const Ending> endings, std::string_view name, Route route) {
  for (const Ending& ending : endings) {
    if (ending.name != name) continue;
    route.method = ending.method;
    route.posts = ending.posts;
    return route;
  }
  return std::nullopt;
}

// NAME[/versions/N][/ENDING]
std::optional<Route> ModelRoute(std::span<const std::string_view> parts) {
  if (parts.size() == 1 && parts[0] == "stats") return Route{.method = RestMethod::kStatistics};
  Route route = {.method = RestMethod::kMetadata, .model = std::string(parts[0])};
  parts = parts.subspan(1);
  if (parts.size() >= 2 && parts[0] == "versions") {
    route.version = parts[1];
    parts = parts.subspan(2);
  }
  if (parts.empty()) return route;
  if (parts.size() > 1) return std::nullopt;
  return EndingIn(kOfModels, parts[0], std::move(route));
}

}  // namespace

std::optional<Route> ParseRoute(std::string_view path) {
  const std::vector<std::string_view> parts = PartsOf(path);
  if (parts.empty() || parts[0] != "v2") return std::nullopt;
  if (parts.size() == 1) return Route{};
  if (parts[1] == "models" && parts.size() > 2) return ModelRoute(std::span(parts).subspan(2));
  if (parts[1] == "health" && parts.size() == 3) {
    if (parts[2] == "live") return Route{.method = RestMethod::kLive};
    if (parts[2] == "ready") return Route{.method = RestMethod::kReady};
  }
  if (parts[1] != "repository") return std::nullopt;
  if (parts.size() == 3 && parts[2] == "index")
    return Route{.method = RestMethod::kIndex, .posts = true};
  if (parts.size() == 5 && parts[2] == "models")
    return EndingIn(kOfRepository, parts[4], {.model = std::string(parts[3])});
  return std::nullopt;
}

}  // namespace deeppcr
