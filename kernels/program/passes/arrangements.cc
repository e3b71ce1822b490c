// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/passes/arrangements.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>

namespace deeppcr::program {
namespace {

// Operands of an arrangement, in the order in which its elements first read them.
class Operands {
 public:
  int32_t IndexOf(ValueId id) {
    // Elements come in runs of one operand.
    if (!ids_.empty() && ids_[static_cast<size_t>(last_)] == id) return last_;
    const auto [it, is_new] = indices_.try_emplace(id, static_cast<int32_t>(ids_.size()));
    if (is_new) ids_.push_back(id);
    return last_ = it->second;
  }
  const std::vector<ValueId>& ids() const { return ids_; }

 private:
  std::vector<ValueId> ids_;
  std::unordered_map<ValueId, int32_t> indices_;
  int32_t last_ = 0;
};

bool StaysInPlace(const std::vector<Element>& elements, int64_t size) {
  if (static_cast<int64_t>(elements.size()) != size) return false;
  for (int64_t i = 0; i < size; ++i) {
    if (elements[static_cast<size_t>(i)].index != i) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<ValueId> WriteArrange(ProgramWriter& writer, std::span<const ValueId> operands,
                                     std::vector<Element> elements) {
  std::vector<const Instruction*> inner;
  inner.reserve(operands.size());
  bool changed = false;
  for (const ValueId id : operands) {
    const Instruction* maker = writer.Producer(id);
    inner.push_back(maker != nullptr && maker->op == Op::kArrange ? maker : nullptr);
    changed |= inner.back() != nullptr;
  }
  Operands sources;
  for (Element& element : elements) {
    const auto operand = static_cast<size_t>(element.operand);
    ValueId source = operands[operand];
    if (inner[operand] != nullptr) {
      const Element& from = inner[operand]->elements[static_cast<size_t>(element.index)];
      source = inner[operand]->operands[static_cast<size_t>(from.operand)];
      element.index = from.index;
    }
    element.operand = sources.IndexOf(source);
  }
  const std::vector<ValueId>& ids = sources.ids();
  if (ids.size() == 1 && StaysInPlace(elements, writer.at(ids[0]).size)) {
    writer.CountChange();
    return ids[0];
  }
  if (changed || !std::ranges::equal(ids, operands)) writer.CountChange();
  return writer.builder().AddArrange(ids, std::move(elements));
}

}  // namespace deeppcr::program
