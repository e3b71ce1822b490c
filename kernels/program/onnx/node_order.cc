// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/onnx/node_order.h"

#include <cstddef>
#include <functional>
#include <queue>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr::program {
namespace {

// Place of no node: inputs and initialisers.
constexpr size_t kOutside = static_cast<size_t>(-1);

using Producers = std::unordered_map<std::string, size_t>;

absl::Status Define(Producers& producers, const std::string& name, size_t node) {
  if (producers.emplace(name, node).second) return absl::OkStatus();
  return InvalidArgument("value ", Quoted(name), " is defined twice");
}

absl::StatusOr<Producers> FindProducers(const OnnxGraph& graph) {
  Producers producers;
  for (const auto& [name, tensor] : graph.initializers) {
    DEEPPCR_RETURN_IF_ERROR(Define(producers, name, kOutside));
  }
  for (const OnnxInput& input : graph.inputs) {
    DEEPPCR_RETURN_IF_ERROR(Define(producers, input.name, kOutside));
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const std::string& output : graph.nodes[i].outputs) {
      if (!output.empty()) DEEPPCR_RETURN_IF_ERROR(Define(producers, output, i));
    }
  }
  return producers;
}

// What waits for what.
struct Edges {
  std::vector<std::vector<size_t>> readers;  // of each node's outputs
  std::vector<size_t> waits;                 // inputs of each node that are no node's yet
};

absl::StatusOr<Edges> FindEdges(const OnnxGraph& graph, const Producers& producers) {
  Edges edges{.readers = std::vector<std::vector<size_t>>(graph.nodes.size()),
              .waits = std::vector<size_t>(graph.nodes.size())};
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const std::string& input : graph.nodes[i].inputs) {
      if (input.empty()) continue;
      const auto found = producers.find(input);
      if (found == producers.end()) {
        return InvalidArgument(Describe(graph.nodes[i]), ": nothing defines its input ",
                               Quoted(input));
      }
      if (found->second == kOutside) continue;
      edges.readers[found->second].push_back(i);
      ++edges.waits[i];
    }
  }
  return edges;
}

// Always takes the first node that waits for nothing, so that an order that is one stays.
std::vector<size_t> Sorted(Edges edges) {
  std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;
  for (size_t i = 0; i < edges.waits.size(); ++i) {
    if (edges.waits[i] == 0) ready.push(i);
  }
  std::vector<size_t> order;
  while (!ready.empty()) {
    const size_t node = ready.top();
    ready.pop();
    order.push_back(node);
    for (const size_t reader : edges.readers[node]) {
      if (--edges.waits[reader] == 0) ready.push(reader);
    }
  }
  return order;
}

absl::Status RefuseCycle(const OnnxGraph& graph, const std::vector<size_t>& order) {
  std::vector<bool> sorted(graph.nodes.size());
  for (const size_t node : order) sorted[node] = true;
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (!sorted[i]) {
      return InvalidArgument(Describe(graph.nodes[i]), " is in a cycle, or reads from one");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status OrderNodes(OnnxGraph& graph) {
  DEEPPCR_ASSIGN_OR_RETURN(const Producers producers, FindProducers(graph));
  for (const std::string& output : graph.outputs) {
    if (!producers.contains(output)) {
      return InvalidArgument("nothing defines the graph's output ", Quoted(output));
    }
  }
  DEEPPCR_ASSIGN_OR_RETURN(Edges edges, FindEdges(graph, producers));
  const std::vector<size_t> order = Sorted(std::move(edges));
  DEEPPCR_RETURN_IF_ERROR(RefuseCycle(graph, order));
  std::vector<OnnxNode> nodes;
  nodes.reserve(order.size());
  for (const size_t node : order) nodes.push_back(std::move(graph.nodes[node]));
  graph.nodes = std::move(nodes);
  return absl::OkStatus();
}

}  // namespace deeppcr::program
