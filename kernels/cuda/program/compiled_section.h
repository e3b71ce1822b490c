// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_CUDA_PROGRAM_COMPILED_SECTION_H_
#define DEEPPCR_KERNELS_CUDA_PROGRAM_COMPILED_SECTION_H_

// Code that is compiled for one program: operations on elements are known to the compiler, which
// takes those that need not wait for one another in one loop. Layers, lines along an axis and
// arrangements are as the interpreter makes them, of the kinds that the program has: their code is
// the same for all instructions of a kind, and what it asks of memory is little beside its work.
// Bits are those of the interpreter, whose functions these are.

#include <cstdint>

#include "kernels/cuda/program/element_step.h"
#include "kernels/cuda/program/elementwise.h"
#include "kernels/cuda/program/kernel.h"
#include "kernels/cuda/program/step.h"
#include "kernels/cuda/program/view.h"
#include "kernels/cuda/runtime/device_code.h"
#include "kernels/program/op.h"

namespace deeppcr::cuda {

// Instruction kAt of a listing alone.
template <class Listing, int kAt>
struct KnownInstruction {
  static constexpr bool Has(program::OpKind kind) {
    return kind == Listing::kInstructions[kAt].kind;
  }
  static constexpr bool Has(program::Op op) { return op == Listing::kInstructions[kAt].op; }
  DEEPPCR_DEVICE static auto OpOf(const ProgramInstruction&) {
    return FixedOp<Listing::kInstructions[kAt].op>();
  }
  static constexpr bool HasOfOperands(int count) {
    return count == Listing::kInstructions[kAt].num_operands;
  }
  template <class... Ops>
  static constexpr bool HasBeside(Ops... ops) {
    return !(Has(ops) || ...);
  }
};

// Makes element i of instructions kAt, ..., kEnd - 1.
template <class Listing, bool kAlone, int kAt, int kEnd>
DEEPPCR_DEVICE void MakeElements(const ElementPlace& place, int i) {
  constexpr ProgramInstruction kInstruction = Listing::kInstructions[kAt];
  ElementStep<KnownInstruction<Listing, kAt>, kAlone>(place, kInstruction, kAt).Make(i);
  if constexpr (kAt + 1 < kEnd) MakeElements<Listing, kAlone, kAt + 1, kEnd>(place, i);
}
// The same with tangents, which steps of any number of rows share.
template <class Listing, int kAt, int kEnd>
DEEPPCR_DEVICE_CALL void MakeElementsByCall(const ElementPlace& place, int i) {
  MakeElements<Listing, false, kAt, kEnd>(place, i);
}

// `Listing` has the instructions of a section without their pointers, as source.h writes them:
//   kCount, and kInstructions [kCount], of ProgramInstruction
template <class Listing>
class Compiled {
 public:
  // Instructions on elements are never run from memory.
  static constexpr bool Has(program::OpKind kind) {
    for (int at = 0; at < Listing::kCount; ++at)
      if (Listing::kInstructions[at].kind == kind && !IsOfElements(at)) return true;
    return false;
  }
  static constexpr bool Has(program::Op op) {
    for (int at = 0; at < Listing::kCount; ++at)
      if (Listing::kInstructions[at].op == op) return true;
    return false;
  }

  template <class Runner>
  DEEPPCR_DEVICE static void Run(const Runner& runner, const ProgramSection& section,
                                 const ProgramStepView& step) {
    for (int at = 0; at < Listing::kCount;) {
      const int end = RunElements<NextOfElements(0)>(runner, step, at);
      if (end == at) {
        runner.Execute(step, section.instructions[at], at);
        ++at;
      } else {
        at = end;
      }
    }
  }

 private:
  static constexpr bool IsOfElements(int at) { return Listing::kInstructions[at].of_elements(); }
  // The end of the instructions that one loop takes with instruction `first`: a thread makes
  // element i of them all, so none of them has to wait.
  static constexpr int EndOf(int first) {
    int end = first + 1;
    while (end < Listing::kCount && IsOfElements(end) &&
           Listing::kInstructions[end].wait == ProgramWait::kNone &&
           Listing::kInstructions[end].result.size == Listing::kInstructions[first].result.size)
      ++end;
    return end;
  }

  // The first instruction on elements from `at` on; kCount if there is none. Instructions in
  // between are none of a compiler's depth of templates.
  static constexpr int NextOfElements(int at) {
    while (at < Listing::kCount && !IsOfElements(at)) ++at;
    return at;
  }

  // Runs the instructions on elements that begin at `at`, if they are kFirst, one of elements, or
  // later ones, and returns their end; else `at`.
  template <int kFirst, class Runner>
  DEEPPCR_DEVICE static int RunElements(const Runner& runner, const ProgramStepView& step, int at) {
    if constexpr (kFirst >= Listing::kCount) {
      return at;
    } else {
      constexpr int kEnd = EndOf(kFirst);
      if (at != kFirst) return RunElements<NextOfElements(kEnd)>(runner, step, at);
      constexpr ProgramInstruction kHead = Listing::kInstructions[kFirst];
      runner.Wait(kHead.wait);
      runner.ForElements(PanelWidth(kHead.result.size), [&](int i) {
        const ElementPlace place = runner.ElementsOf(step);
        if constexpr (Runner::kAlone) {
          MakeElements<Listing, true, kFirst, kEnd>(place, i);
        } else {
          MakeElementsByCall<Listing, kFirst, kEnd>(place, i);
        }
      });
      return kEnd;
    }
  }
};

// A ProgramView whose section is compiled: the very same bytes.
template <class Listing>
struct CompiledView : ProgramView {
  using Code = Compiled<Listing>;

  template <class Team>
  DEEPPCR_DEVICE auto NewSoleStep(const Team& team, float* memory) const {
    return NewStep<1>(team, memory, 1, false);
  }
  template <int S, class Team>
  DEEPPCR_DEVICE ProgramStep<S, Team, Code> NewStep(const Team& team, float* memory, int rows,
                                                    bool probes) const {
    return {team, *this, memory, rows, probes};
  }
};

}  // namespace deeppcr::cuda

#endif  // DEEPPCR_KERNELS_CUDA_PROGRAM_COMPILED_SECTION_H_
