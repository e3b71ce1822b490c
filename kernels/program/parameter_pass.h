// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_PARAMETER_PASS_H_
#define DEEPPCR_KERNELS_PROGRAM_PARAMETER_PASS_H_

// Gradients of a program by its parameters, in double. With the states z_0..z_L of a sample and the
// cotangents g_l of z_l,
//
//   sum_l (dz_l / dtheta at z_{l-1})^T g_l
//
// where nothing waits for anything: all z and g are known. Steps go through the program in blocks
// of a size that the program decides alone; what blocks give is added in their order. So the bits
// depend neither on threads nor on what a call takes together.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/cancel_token.h"
#include "kernels/problem/reverse_step.h"
#include "kernels/program/program.h"

namespace deeppcr::program {

// Steps of one sample that go through a program.
struct ParameterRows {
  int64_t first = 0, count = 1;       // steps first .. first + count - 1, counted from 0
  const float* states = nullptr;      // [count, size of the program's state]: what enters them
  const float* cotangents = nullptr;  // [count, size of its output]
  // Reverse steps [count], and their clip; empty for a program without one.
  std::span<const ReverseStep> reverse;
  double clip_range = 0;
  const float* condition = nullptr;  // where the program reads it
  double label = 0;
  // Noise, where the program scales it: elements of a step; [count, noise_size], or null: drawn,
  // see kernels/problem/philox.h.
  int64_t noise_size = 0;
  const float* noise = nullptr;
  uint64_t seed = 0, sample = 0;
};

// How a program is differentiated. Immutable, thread-safe.
class ParameterPass {
 public:
  // Steps of a block, at most.
  static constexpr int64_t kMostRows = 16;

  // Memory of one block, reused by one thread at a time.
  class Block;
  // What is the same for all steps and samples: constants, and what follows from parameters alone.
  class Shared;

  // `program` must outlive the result.
  explicit ParameterPass(const Program& program);

  // Steps of a full block. Blocks begin at its multiples.
  int64_t rows() const { return rows_; }
  int64_t BlockBytes() const;
  int64_t SharedBytes() const { return shared_size_ * int64_t{sizeof(double)}; }

  // Takes rows, count <= rows(), through the program and back. False once the token has fired,
  // which is looked at every few hundred microseconds; the block is of no use then.
  bool Run(const ParameterRows& rows, const Shared& shared, const CancelToken* token,
           Block* block) const;

  // Pieces of the parameters, which threads may add apart.
  int64_t num_pieces() const { return static_cast<int64_t>(pieces_.size()); }
  // Adds what blocks that have run give to the gradients of a piece, in their order. sums: by
  // ParameterSlice::tensor, laid out as the tensor is; null: not wanted.
  void Add(int64_t piece, std::span<const Block> blocks, const Shared& shared,
           std::span<float* const> sums) const;

 private:
  // Where the elements of a value lie.
  enum class Home : uint8_t {
    kShared,  // one row for all
    kOnce,    // one row for a block: it depends on the condition alone
    kSteps,   // a row for each step
  };
  struct Place {
    Home home = Home::kShared;
    int64_t at = -1;         // offset of the values in Shared or Block; -1: read as float32
    int64_t cotangent = -1;  // offset of the cotangents in Block; -1: none are kept
    int32_t parameter = -1;  // index into Program::parameters
    bool wanted = false;     // something follows from its cotangents
  };
  struct Piece {
    int32_t parameter = 0, tensor = 0;
    int64_t begin = 0, end = 0;  // of the parameter's elements
    int64_t tensor_begin = 0;    // the element of the parameter that is the tensor's first
  };
  class Reader;
  class Runner;

  const Place& At(ValueId id) const { return places_[static_cast<size_t>(id)]; }
  void PlaceValues();
  void PlaceCotangents();
  void MakePieces();

  const Program& program_;
  std::vector<Place> places_;  // by value
  // By parameter: the products whose matrix it is. What they give is made when it is added.
  std::vector<std::vector<const Instruction*>> uses_;
  std::vector<Piece> pieces_;
  int64_t rows_ = 1;
  int64_t shared_size_ = 0;                      // doubles
  int64_t value_size_ = 0, cotangent_size_ = 0;  // of a block
};

class ParameterPass::Block {
 public:
  explicit Block(const ParameterPass& pass);

 private:
  friend class ParameterPass;
  std::vector<double> values_, cotangents_;
  int64_t first_ = 0, count_ = 0;
};

class ParameterPass::Shared {
 public:
  explicit Shared(const ParameterPass& pass);

 private:
  friend class ParameterPass;
  std::vector<double> values_;
};

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_PARAMETER_PASS_H_
