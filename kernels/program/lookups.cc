// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/lookups.h"

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/program/cost.h"
#include "kernels/program/evaluate.h"

namespace deeppcr::program {
namespace {

// Work that trying classes and times may take, a fraction of a second, and what an instruction
// takes beside its multiply-adds.
constexpr double kMaxWork = 1e8, kWorkOfInstruction = 100;

class LookupCheck {
 public:
  LookupCheck(const Program& program, int64_t num_classes, std::span<const double> times)
      : num_classes_(std::max<int64_t>(1, num_classes)), times_(times) {
    for (const Instruction& instruction : program.instructions) {
      if (instruction.op != Op::kLookup) continue;
      const Value& value = program.at(instruction.result);
      const bool by_vector = (value.depends & kOnCondition) != 0 && program.condition != kNoValue;
      if (!by_vector)
        lookups_.push_back(
            {instruction.operands[0], instruction.linear.rows, value.depends, value.name});
    }
    TakeIndices(program);
  }

  absl::Status Run(const CancelToken* token) const {
    if (lookups_.empty()) return absl::OkStatus();
    double work = 0;
    for (const Instruction& instruction : indices_.instructions)
      work += kWorkOfInstruction + MultiplyAdds(indices_, instruction);
    const bool both = std::ranges::any_of(
        lookups_, [](const Lookup& lookup) { return lookup.depends == kOnTimeAndCondition; });
    const int64_t times = std::max<int64_t>(1, std::ssize(times_));
    const int64_t all = both ? num_classes_ * times : std::max(num_classes_, times);
    const int64_t most = std::max<int64_t>(2, static_cast<int64_t>(kMaxWork / (work + 1)));
    Evaluation in_double(indices_), in_float(indices_, Evaluation::Rounding::kFloat);
    for (int64_t i = 0; i < std::min(all, most); ++i) {
      const int64_t at = all <= most ? i : Drawn(i, all);
      const int64_t label = at % num_classes_;
      const int64_t step = both ? at / num_classes_ : at % times;
      const double time = times_.empty() ? 0 : times_[static_cast<size_t>(step)];
      const StepInputs inputs = {.time = time, .step = step, .label = static_cast<double>(label)};
      for (Evaluation* evaluation : {&in_double, &in_float})
        evaluation->Run(inputs, {}, kOnTimeAndCondition, token);
      if (Fired(token)) return absl::CancelledError("stopped while lookups were tried");
      for (const Lookup& lookup : lookups_)
        DEEPPCR_RETURN_IF_ERROR(
            Check(lookup, label, time, in_double.at(lookup.index), in_float.at(lookup.index)));
    }
    return absl::OkStatus();
  }

 private:
  struct Lookup {
    ValueId index;
    int64_t rows;
    uint8_t depends;
    std::string name;
  };

  // Keeps what indices are made of, and nothing else.
  void TakeIndices(const Program& program) {
    std::vector<bool> read(program.values.size());
    for (const Lookup& lookup : lookups_) read[static_cast<size_t>(lookup.index)] = true;
    for (auto it = program.instructions.rbegin(); it != program.instructions.rend(); ++it) {
      if (!read[static_cast<size_t>(it->result)]) continue;
      for (const ValueId id : it->operands) read[static_cast<size_t>(id)] = true;
      indices_.instructions.push_back(*it);
    }
    std::ranges::reverse(indices_.instructions);
    for (size_t i = 0; i < program.values.size(); ++i) {
      const Value& value = program.values[i];
      indices_.values.push_back({.size = value.size, .depends = value.depends});
      if (read[i]) indices_.values.back().constant = value.constant;
    }
    indices_.time = program.time;
    indices_.label = program.label;
    for (const StackedConstant& stacked : program.stacked)
      if (read[static_cast<size_t>(stacked.value)]) indices_.stacked.push_back(stacked);
  }

  // Draw i of `all`: the first, the last, then any.
  static int64_t Drawn(int64_t i, int64_t all) {
    if (i < 2) return i == 0 ? 0 : all - 1;
    uint64_t x = static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15U;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
    return static_cast<int64_t>((x ^ (x >> 27)) % static_cast<uint64_t>(all));
  }

  absl::Status Check(const Lookup& lookup, int64_t label, double time,
                     std::span<const double> in_double, std::span<const double> in_float) const {
    const int64_t row = FoundRow(in_double[0], lookup.rows);
    const int64_t rounded = FoundRow(in_float[0], lookup.rows);
    if (row >= 0 && row == rounded) return absl::OkStatus();
    std::string where;
    if ((lookup.depends & kOnCondition) != 0) where = StrCat("class ", label);
    if ((lookup.depends & kOnTime) != 0)
      where += StrCat(where.empty() ? "" : " at ", "time ", time);
    if (row < 0 || rounded < 0)
      return InvalidArgument(where, " has no row in a table of ", lookup.rows, " (",
                             Quoted(lookup.name), ")");
    return InvalidArgument(where, " finds row ", row, " of a table of ", lookup.rows,
                           " in double but row ", rounded, " in float32: rounding decides (",
                           Quoted(lookup.name), ")");
  }

  const int64_t num_classes_;
  const std::span<const double> times_;
  std::vector<Lookup> lookups_;
  Program indices_;
};

}  // namespace

absl::Status CheckLookups(const Program& program, int64_t num_classes,
                          std::span<const double> times, const CancelToken* token) {
  if (program.label != kNoValue && num_classes > kMaxFloatIndex)
    return absl::UnimplementedError(StrCat("more than ", kMaxFloatIndex, " classes"));
  for (const Instruction& instruction : program.instructions) {
    if (instruction.op == Op::kLookup && instruction.linear.rows > kMaxFloatIndex &&
        (program.at(instruction.result).depends & kOnCondition) != 0)
      return absl::UnimplementedError(StrCat("a table of ", instruction.linear.rows,
                                             " rows, looked up by a condition; up to ",
                                             kMaxFloatIndex, " are"));
  }
  return LookupCheck(program, num_classes, times).Run(token);
}

}  // namespace deeppcr::program
