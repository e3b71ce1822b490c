// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/program/source.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "kernels/base/strings.h"
#include "kernels/cuda/loop/block_shape.h"
#include "kernels/program/op.h"

namespace deeppcr::cuda {
namespace {

// Digits that give the very same float, in any locale.
std::string Text(float x) {
  if (std::isnan(x)) return "NAN";
  if (std::isinf(x)) return x > 0 ? "INFINITY" : "-INFINITY";
  return absl::StrFormat("%aF", x);
}
std::string Text(const ProgramValue& value) {
  return StrCat("{Home(", static_cast<int>(value.home), "), ", value.offset, ", ", value.block,
                ", ", value.size, "}");
}

// One row of a listing, in the order of the members of ProgramInstruction.
std::string Row(const ProgramInstruction& made) {
  return StrCat("      {Op(", static_cast<int>(made.op), "), OpKind(", static_cast<int>(made.kind),
                "), StepPart(", static_cast<int>(made.part), "), ProgramWait(",
                static_cast<int>(made.wait), "), ", static_cast<int>(made.num_operands), ", ",
                made.gathers ? "true" : "false", ", ", Text(made.ulps), ", ", Text(made.epsilon),
                ",\n       {", Text(made.operands[0]), ", ", Text(made.operands[1]), ", ",
                Text(made.operands[2]), "}, ", Text(made.result), "},  // ",
                program::RowOf(made.op).name, "\n");
}

// A kernel that runs `body` on `args` of type Args<View>.
static_assert(kGridWarps <= kMaxBlockWarps);
std::string Kernel(std::string_view name, std::string_view args, std::string_view body) {
  return StrCat("extern \"C\" __global__ void __launch_bounds__(", kMaxBlockWarps * kWarpSize,
                ", 1)\n    ", name, "(const ", args, "<View> args) {\n  ", body, "\n}\n");
}

constexpr std::string_view kByBlocks = "DeviceContext context;\n  ";
constexpr std::string_view kByClusters = "ClusterContext context;\n  ";
constexpr std::string_view kByGrids = "GridContext context;\n  ";

}  // namespace

std::string ListingOf(std::string_view name, std::span<const ProgramInstruction> instructions) {
  std::string text = StrCat("struct ", name, " {\n  using Home = program::Home;\n",
                            "  using Op = program::Op;\n  using OpKind = program::OpKind;\n",
                            "  static constexpr int kCount = ", instructions.size(), ";\n",
                            "  static constexpr ProgramInstruction kInstructions[] = {\n");
  for (const ProgramInstruction& made : instructions) text += Row(made);
  // No array of C++ is empty.
  if (instructions.empty()) text += "      {},\n";
  return text + "  };\n};\n";
}

std::string SourceOf(std::span<const ProgramInstruction> instructions,
                     const KernelsWanted& wanted) {
  const int rows = WithStepRows(wanted.rows, [](auto most) -> int { return most.value; });
  std::string text = StrCat(
      "#include \"kernels/cuda/diffusion/coarse_guess.h\"\n"
      "#include \"kernels/cuda/program/compiled_section.h\"\n"
      "#include \"kernels/cuda/program/grid_steps.h\"\n"
      "#include \"kernels/cuda/runtime/device_context.h\"\n\n"
      "namespace deeppcr::cuda {\n\n",
      ListingOf("Listing", instructions),
      "using View = CompiledView<Listing>;\n"
      "static_assert(sizeof(View) == sizeof(ProgramView), \"the same bytes\");\n\n",
      Kernel("sequential", "BlockSequentialArgs",
             StrCat(kByBlocks, "SolveByTeams(BlockTeam(context), args);")),
      Kernel("propagation", "PropagationArgs",
             StrCat(kByBlocks, "PropagateIntervals<", rows, ">(context, args);")),
      Kernel("expansion", "ExpansionArgs", StrCat(kByBlocks, "ExpandIntervals(context, args);")));
  if (wanted.clusters)
    text += Kernel("cluster_sequential", "BlockSequentialArgs",
                   StrCat(kByClusters, "SolveByTeams(ClusterTeam(context), args);"));
  if (wanted.grid)
    text += Kernel("grid_sequential", "GridStepsArgs",
                   StrCat(kByGrids, "SolveProgramOverGrid(context, args);"));
  if (wanted.guesses)
    text += Kernel("coarse", "CoarseArgs",
                   StrCat(kByBlocks, "GuessCoarsely(BlockTeam(context), args);"));
  if (wanted.guesses && wanted.clusters)
    text += Kernel("cluster_coarse", "CoarseArgs",
                   StrCat(kByClusters, "GuessCoarsely(ClusterTeam(context), args);"));
  return text + "\n}  // namespace deeppcr::cuda\n";
}

int64_t NumOfElements(std::span<const ProgramInstruction> instructions) {
  return std::ranges::count_if(instructions, &ProgramInstruction::of_elements);
}

}  // namespace deeppcr::cuda
