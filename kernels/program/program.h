// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_PROGRAM_H_
#define DEEPPCR_KERNELS_PROGRAM_PROGRAM_H_

// A step program: the straight line of operations that takes the state of one sample through one
// step, z' = step(z, time, condition). Values are vectors; a tensor of a sample is its elements in
// row-major order.
//
// Every value depends on nothing, the time, the condition, both, or the state. Only what depends on
// the state is inside the recurrence. What each layer of a stack has for itself depends on the
// time: the layer is the time.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/problem/reverse_step.h"
#include "kernels/program/op.h"

namespace deeppcr::program {

// What a value depends on: a set of bits. The step noise counts as the state, as only reverse
// steps read it.
enum Depends : uint8_t {
  kOnNothing = 0,
  kOnTime = 1,
  kOnCondition = 2,
  kOnTimeAndCondition = 3,
  kOnState = 4,  // with or without others
  // Beside the others, and only in programs that are differentiated by their parameters.
  kOnParameters = 8,
};

// Index of a value.
using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;

struct Value {
  int64_t size = 0;  // elements, >= 1
  uint8_t depends = kOnNothing;
  // The value itself, [size], where it depends on nothing; else empty.
  std::vector<double> constant;
  std::string name;  // of the graph, for messages; may be empty
};

// y = W x + b for each of `repeat` rows x.
struct LinearLayer {
  int64_t rows = 0, cols = 0, repeat = 1;
  std::shared_ptr<const std::vector<float>> weight;  // [rows, cols], row-major
  std::shared_ptr<const std::vector<float>> bias;    // [rows], or null for zero
  bool transposed = false;                           // kProduct: the matrix is [cols, rows]
};

// The view [outer, axis, inner] of an operand, of which an operation goes along `axis`.
struct Axis {
  int64_t outer = 1, length = 1, inner = 1;
};

// An element of an operand.
struct Element {
  int32_t operand;  // index into Instruction::operands
  int64_t index;
};

struct Instruction {
  Op op = Op::kAdd;
  std::vector<ValueId> operands;
  ValueId result = kNoValue;
  // kLinear; kLookup, whose table [rows, cols] is `weight`, or the second operand where it is a
  // parameter; kProduct, whose matrix and bias are the operands: x, A, and maybe b.
  LinearLayer linear;
  Axis axis;                         // reductions and operations along an axis
  double epsilon = 0;                // kStandardize, kScaleToUnit
  std::vector<Element> elements;     // kArrange: of the result, in order
  StepPart part = StepPart::kState;  // kReverseStep
};

// Numbers that each step has for itself: the stacked weights of a stack.
struct StackedConstant {
  ValueId value = kNoValue;
  std::shared_ptr<const std::vector<float>> rows;  // [L, size]
};

// Elements of a tensor of the model, in the order of the numbers of a parameter.
struct ParameterSlice {
  int32_t tensor = 0;  // index into a list of the caller's
  int64_t size = 0;    // elements, for each step where the parameter has some for each
};

// Weights that stay a value, so that a program can be differentiated by them.
struct Parameter {
  ValueId value = kNoValue;
  std::shared_ptr<const std::vector<float>> numbers;  // [size], or [L, size]
  bool per_step = false;                              // [L, size]: each step has its own
  std::vector<ParameterSlice> slices;                 // whole tensors, one if it is per_step
};

struct Program {
  std::vector<Value> values;
  // In an order in which every operand comes before its use; every value but constants and inputs
  // is the result of one instruction.
  std::vector<Instruction> instructions;
  // Inputs; kNoValue where the program does not read them.
  ValueId state = kNoValue;      // z
  ValueId time = kNoValue;       // the timestep, one element
  ValueId condition = kNoValue;  // the condition's vector
  ValueId label = kNoValue;      // the condition's class, one element
  std::vector<StackedConstant> stacked;
  std::vector<Parameter> parameters;
  ValueId prediction = kNoValue;  // m, what a denoiser says
  ValueId output = kNoValue;      // z', the next state

  const Value& at(ValueId id) const { return values[static_cast<size_t>(id)]; }
};

// Bytes of the numbers of a program.
int64_t MemoryBytes(const Program& program);

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_PROGRAM_H_
