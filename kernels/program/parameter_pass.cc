// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/parameter_pass.h"

#include <algorithm>
#include <array>

#include "kernels/problem/philox.h"
#include "kernels/program/evaluate.h"
#include "kernels/program/row_products.h"

namespace deeppcr::program {
namespace {

// Bytes of a block, which fit a cache of the second or third level.
constexpr int64_t kBlockBytes = int64_t{16} << 20;
// Multiply-adds of a block, there, back and into the sums: some tens of milliseconds on one core,
// after which a caller may do something else. Four rows at least go through a product together.
constexpr int64_t kBlockProducts = int64_t{1} << 28, kLeastRows = 4;
// Elements of a piece: some hundred microseconds for a block.
constexpr int64_t kPieceElements = int64_t{1} << 14;

}  // namespace

// What some rows have in a block and share with others.
class ParameterPass::Reader {
 public:
  // `block` may be null: of what all rows share.
  Reader(const ParameterPass& pass, int64_t count, const double* shared, const Block* block)
      : pass_(pass), count_(count), shared_(shared), block_(block) {}

  const double* Values(ValueId id, int64_t r) const {
    const Place& place = Of(id);
    return place.home == Home::kShared ? shared_ + place.at
                                       : block_->values_.data() + place.at + RowOffset(id, r);
  }
  const double* Cotangent(ValueId id, int64_t r) const {
    return block_->cotangents_.data() + Of(id).cotangent + RowOffset(id, r);
  }
  int64_t Rows(ValueId id) const { return Of(id).home == Home::kSteps ? count_ : 1; }

  // Calls f(r, rows) for rows of x and of the result of a product that go with one matrix: all of
  // them together, where that is one.
  template <class F>
  bool ForRows(const Instruction& instruction, const F& f) const {
    const int64_t rows = Rows(instruction.result);
    const bool one_matrix = instruction.operands.size() < 2 || Rows(instruction.operands[1]) == 1;
    if (one_matrix && Rows(instruction.operands[0]) == rows)
      return f(0, rows * instruction.linear.repeat);
    for (int64_t r = 0; r < rows; ++r)
      if (!f(r, instruction.linear.repeat)) return false;
    return true;
  }

  // Adds the gradient of elements [begin, end) of the matrix of a product, as they lie in it.
  template <class Number>
  static void AddMatrix(const Instruction& instruction, const double* x, const double* g,
                        int64_t rows, int64_t begin, int64_t end, Number* to) {
    const LinearLayer& sizes = instruction.linear;
    if (sizes.transposed) {
      AddOuterProducts(x, sizes.cols, g, sizes.rows, rows, begin, end, to);
    } else {
      AddOuterProducts(g, sizes.rows, x, sizes.cols, rows, begin, end, to);
    }
  }

 protected:
  const Place& Of(ValueId id) const { return pass_.At(id); }
  int64_t Size(ValueId id) const { return pass_.program_.at(id).size; }
  int64_t RowOffset(ValueId id, int64_t r) const {
    return Of(id).home == Home::kSteps ? r * Size(id) : 0;
  }

  const ParameterPass& pass_;

 private:
  const int64_t count_;
  const double* const shared_;
  const Block* const block_;
};

// The way of some rows through the program and back.
class ParameterPass::Runner : public Reader {
 public:
  Runner(const ParameterPass& pass, const ParameterRows& rows, const Shared& shared, Block* block,
         const CancelToken* token)
      : Reader(pass, rows.count, shared.values_.data(), block),
        rows_(rows),
        block_(block),
        pause_(token) {}
  // Of what all rows share, which goes to `shared`.
  Runner(const ParameterPass& pass, const ParameterRows& none, Shared* shared)
      : Reader(pass, 1, shared->values_.data(), nullptr),
        rows_(none),
        making_(shared),
        pause_(nullptr) {}

  bool Forward() {
    SetInputs();
    SetNoise();
    for (const Instruction& instruction : pass_.program_.instructions)
      if (Makes(instruction.result) && !Evaluate(instruction)) return false;
    return true;
  }

  bool Back() {
    const ValueId output = pass_.program_.output;
    if (!Of(output).wanted) return true;
    const int64_t size = Size(output);
    for (int64_t r = 0; r < Rows(output); ++r)
      std::copy_n(rows_.cotangents + r * size, size, MutableCotangent(output, r));
    const auto& instructions = pass_.program_.instructions;
    for (auto it = instructions.rbegin(); it != instructions.rend(); ++it) {
      if (Of(it->result).wanted && !TakeBack(*it)) return false;
    }
    return true;
  }

 private:
  // Whether a value is this object's to make.
  bool Makes(ValueId id) const { return (Of(id).home == Home::kShared) == (making_ != nullptr); }
  double* MutableValues(ValueId id, int64_t r) {
    std::vector<double>& values = making_ != nullptr ? making_->values_ : block_->values_;
    return values.data() + Of(id).at + RowOffset(id, r);
  }
  double* MutableCotangent(ValueId id, int64_t r) const {
    return block_->cotangents_.data() + Of(id).cotangent + RowOffset(id, r);
  }
  std::span<const double> View(ValueId id, int64_t r) const {
    return {Values(id, r), static_cast<size_t>(Size(id))};
  }
  std::span<double> CotangentView(ValueId id, int64_t r) const {
    if (Of(id).cotangent < 0) return {};
    return {MutableCotangent(id, r), static_cast<size_t>(Size(id))};
  }

  // Sets the rows of an input, if it is this object's to make, to element(row, i).
  void Set(ValueId id, Home home, const auto& element) {
    if (id == kNoValue || Of(id).at < 0 || Of(id).home != home || !Makes(id)) return;
    for (int64_t r = 0; r < Rows(id); ++r) {
      double* const to = MutableValues(id, r);
      for (int64_t i = 0; i < Size(id); ++i) to[i] = element(r, i);
    }
  }

  void SetInputs() {
    const Program& program = pass_.program_;
    for (ValueId id = 0; id < std::ssize(program.values); ++id) {
      const std::vector<double>& constant = program.at(id).constant;
      if (!constant.empty())
        Set(id, Home::kShared, [&](int64_t, int64_t i) { return constant[i]; });
    }
    for (const Parameter& parameter : program.parameters) {
      const int64_t size = Size(parameter.value);
      Set(parameter.value, parameter.per_step ? Home::kSteps : Home::kShared,
          [&](int64_t r, int64_t i) {
            return (*parameter.numbers)[(parameter.per_step ? (rows_.first + r) * size : 0) + i];
          });
    }
    for (const StackedConstant& stacked : program.stacked) {
      const int64_t size = Size(stacked.value);
      Set(stacked.value, Home::kSteps,
          [&](int64_t r, int64_t i) { return (*stacked.rows)[(rows_.first + r) * size + i]; });
    }
    Set(program.state, Home::kSteps,
        [&](int64_t r, int64_t i) { return rows_.states[r * Size(program.state) + i]; });
    Set(program.time, Home::kSteps,
        [&](int64_t r, int64_t) { return rows_.reverse[static_cast<size_t>(r)].timestep; });
    Set(program.condition, Home::kOnce, [&](int64_t, int64_t i) { return rows_.condition[i]; });
    Set(program.label, Home::kOnce, [&](int64_t, int64_t) { return rows_.label; });
  }

  void SetNoise() {
    const int64_t size = rows_.noise_size;
    std::vector<float> drawn(static_cast<size_t>(rows_.noise == nullptr ? size : 0));
    for (int64_t r = 0; r < rows_.count && size > 0; ++r) {
      const float* row = drawn.data();
      if (rows_.noise != nullptr)
        row = rows_.noise + r * size;
      else
        FillNormals(rows_.seed, rows_.sample, static_cast<uint32_t>(rows_.first + r), size,
                    drawn.data());
      noise_.insert(noise_.end(), row, row + size);
    }
  }

  StepInputs InputsOf(int64_t r) const {
    StepInputs inputs = {.clip_range = rows_.clip_range};
    const auto size = static_cast<size_t>(rows_.noise_size);
    if (size > 0) inputs.noise = std::span(noise_).subspan(static_cast<size_t>(r) * size, size);
    if (!rows_.reverse.empty()) inputs.reverse = &rows_.reverse[static_cast<size_t>(r)];
    return inputs;
  }

  // Calls f with the matrix of a product, as it is read.
  template <class F>
  bool WithMatrix(const Instruction& instruction, int64_t r, const F& f) const {
    const ValueId id = instruction.operands[1];
    const Place& place = Of(id);
    if (place.parameter < 0) return f(Values(id, r));
    const Parameter& parameter = pass_.program_.parameters[static_cast<size_t>(place.parameter)];
    return f(parameter.numbers->data() + (parameter.per_step ? (rows_.first + r) * Size(id) : 0));
  }

  bool Evaluate(const Instruction& instruction) {
    const ValueId result = instruction.result;
    const OpKind kind = RowOf(instruction.op).kind;
    if (kind == OpKind::kLinear || kind == OpKind::kProduct) return Multiply(instruction);
    for (int64_t r = 0; r < Rows(result); ++r) {
      if (pause_.Stop(kWorkOfElement * Size(result))) return false;
      operands_.clear();
      for (const ValueId id : instruction.operands) operands_.push_back(View(id, r));
      const std::vector<double> y =
          EvaluateInstruction(instruction, Size(result), operands_, InputsOf(r));
      std::ranges::copy(y, MutableValues(result, r));
    }
    return true;
  }

  bool Multiply(const Instruction& instruction) {
    const LinearLayer& sizes = instruction.linear;
    const ValueId x = instruction.operands[0], result = instruction.result;
    SetBias(instruction);
    return ForRows(instruction, [&](int64_t r, int64_t rows) {
      const double* const in = Values(x, r);
      double* const out = MutableValues(result, r);
      if (instruction.op == Op::kLinear)
        return AddDots(sizes.weight->data(), sizes.rows, sizes.cols, in, rows, out, pause_);
      return WithMatrix(instruction, r, [&](const auto* matrix) {
        return sizes.transposed
                   ? AddCombinations(matrix, sizes.cols, sizes.rows, in, rows, out, pause_)
                   : AddDots(matrix, sizes.rows, sizes.cols, in, rows, out, pause_);
      });
    });
  }

  // Sets the result of a product to its bias, or to zero.
  void SetBias(const Instruction& instruction) {
    const int64_t rows = instruction.linear.rows;
    const std::vector<float>* const constant = instruction.linear.bias.get();
    const bool is_value = instruction.operands.size() > 2;
    for (int64_t r = 0; r < Rows(instruction.result); ++r) {
      double* const y = MutableValues(instruction.result, r);
      const double* const value = is_value ? Values(instruction.operands[2], r) : nullptr;
      for (int64_t i = 0; i < Size(instruction.result); ++i)
        y[i] = is_value ? value[i % rows] : constant != nullptr ? (*constant)[i % rows] : 0.0;
    }
  }

  bool TakeBack(const Instruction& instruction) {
    const ValueId result = instruction.result;
    const OpKind kind = RowOf(instruction.op).kind;
    if (kind == OpKind::kLinear || kind == OpKind::kProduct) return TakeProductBack(instruction);
    for (int64_t r = 0; r < Rows(result); ++r) {
      if (pause_.Stop(kWorkOfElement * Size(result))) return false;
      operands_.clear();
      to_.clear();
      for (const ValueId id : instruction.operands) {
        operands_.push_back(View(id, r));
        to_.push_back(CotangentView(id, r));
      }
      AddOperandCotangents(instruction, View(result, r), operands_, CotangentView(result, r),
                           InputsOf(r), to_);
    }
    return true;
  }

  bool TakeProductBack(const Instruction& instruction) {
    const LinearLayer& sizes = instruction.linear;
    const ValueId x = instruction.operands[0], result = instruction.result;
    if (instruction.operands.size() > 2) TakeBiasBack(instruction);
    return ForRows(instruction, [&](int64_t r, int64_t rows) {
      const double* const g = Cotangent(result, r);
      if (Of(x).cotangent >= 0 && !TakeInputBack(instruction, r, rows, g, MutableCotangent(x, r)))
        return false;
      // A parameter's own gradient is made when it is added.
      if (instruction.op == Op::kLinear || Of(instruction.operands[1]).parameter >= 0 ||
          Of(instruction.operands[1]).cotangent < 0)
        return true;
      if (pause_.Stop(sizes.rows * sizes.cols * rows)) return false;
      AddMatrix(instruction, Values(x, r), g, rows, 0, sizes.rows * sizes.cols,
                MutableCotangent(instruction.operands[1], r));
      return true;
    });
  }

  bool TakeInputBack(const Instruction& instruction, int64_t r, int64_t rows, const double* g,
                     double* to) {
    const LinearLayer& sizes = instruction.linear;
    if (instruction.op == Op::kLinear)
      return AddCombinations(sizes.weight->data(), sizes.rows, sizes.cols, g, rows, to, pause_);
    return WithMatrix(instruction, r, [&](const auto* matrix) {
      return sizes.transposed
                 ? AddDots(matrix, sizes.cols, sizes.rows, g, rows, to, pause_)
                 : AddCombinations(matrix, sizes.rows, sizes.cols, g, rows, to, pause_);
    });
  }

  void TakeBiasBack(const Instruction& instruction) const {
    const ValueId bias = instruction.operands[2];
    if (Of(bias).cotangent < 0) return;
    for (int64_t r = 0; r < Rows(instruction.result); ++r) {
      const double* const g = Cotangent(instruction.result, r);
      double* const to = MutableCotangent(bias, r);
      for (int64_t i = 0; i < Size(instruction.result); ++i) to[i % Size(bias)] += g[i];
    }
  }

  static constexpr int64_t kWorkOfElement = 32;  // an activation's, in products

  const ParameterRows& rows_;
  Block* const block_ = nullptr;
  Shared* const making_ = nullptr;
  Pause pause_;
  std::vector<double> noise_;  // [count, noise_size]
  std::vector<std::span<const double>> operands_;
  std::vector<std::span<double>> to_;
};

ParameterPass::ParameterPass(const Program& program) : program_(program) {
  PlaceValues();
  PlaceCotangents();
  MakePieces();
}

// Finds the homes and the number of rows of a block, and then the places of values.
void ParameterPass::PlaceValues() {
  places_.resize(program_.values.size());
  for (size_t i = 0; i < places_.size(); ++i) {
    const uint8_t depends = program_.values[i].depends;
    places_[i].home = (depends & (kOnTime | kOnState)) != 0 ? Home::kSteps
                      : (depends & kOnCondition) != 0       ? Home::kOnce
                                                            : Home::kShared;
    places_[i].wanted = (depends & kOnParameters) != 0;
  }
  for (size_t p = 0; p < program_.parameters.size(); ++p)
    places_[static_cast<size_t>(program_.parameters[p].value)].parameter = static_cast<int32_t>(p);
  // A parameter that is nothing but matrices of products is read where it is.
  std::vector<bool> read(places_.size());
  for (const Instruction& instruction : program_.instructions) {
    for (size_t k = 0; k < instruction.operands.size(); ++k) {
      const bool matrix = k == 1 && instruction.op == Op::kProduct;
      const auto id = static_cast<size_t>(instruction.operands[k]);
      if (!matrix || places_[id].parameter < 0) read[id] = true;
    }
    read[static_cast<size_t>(instruction.result)] = true;
  }
  int64_t once = 0, steps = 0;
  for (size_t i = 0; i < places_.size(); ++i) {
    Place& place = places_[i];
    if (!read[i]) continue;
    place.at = 0;
    place.cotangent = place.wanted ? 0 : -1;
    const int64_t size = program_.values[i].size;
    (place.home == Home::kSteps ? steps : once) +=
        (place.home == Home::kShared ? 0 : size) + (place.wanted ? size : 0);
  }
  int64_t products = 1;
  for (const Instruction& instruction : program_.instructions) {
    const LinearLayer& sizes = instruction.linear;
    const bool multiplies = instruction.op == Op::kLinear || instruction.op == Op::kProduct;
    if (multiplies && At(instruction.result).home == Home::kSteps)
      products += 3 * sizes.rows * sizes.cols * sizes.repeat;
  }
  constexpr int64_t kDoubles = kBlockBytes / int64_t{sizeof(double)};
  const int64_t by_work = std::clamp(kBlockProducts / products, kLeastRows, kMostRows);
  rows_ = std::clamp<int64_t>((kDoubles - once) / std::max<int64_t>(1, steps), 1, by_work);
  for (size_t i = 0; i < places_.size(); ++i) {
    Place& place = places_[i];
    if (place.at < 0) continue;
    int64_t& size = place.home == Home::kShared ? shared_size_ : value_size_;
    place.at = size;
    size += program_.values[i].size * (place.home == Home::kSteps ? rows_ : 1);
  }
}

void ParameterPass::PlaceCotangents() {
  for (size_t i = 0; i < places_.size(); ++i) {
    Place& place = places_[i];
    if (place.cotangent < 0) continue;
    place.cotangent = cotangent_size_;
    cotangent_size_ += program_.values[i].size * (place.home == Home::kSteps ? rows_ : 1);
  }
}

void ParameterPass::MakePieces() {
  uses_.resize(program_.parameters.size());
  for (const Instruction& instruction : program_.instructions) {
    if (instruction.op != Op::kProduct) continue;
    const int32_t parameter = At(instruction.operands[1]).parameter;
    if (parameter >= 0) uses_[static_cast<size_t>(parameter)].push_back(&instruction);
  }
  for (size_t p = 0; p < program_.parameters.size(); ++p) {
    int64_t first = 0;
    for (const ParameterSlice& slice : program_.parameters[p].slices) {
      for (int64_t begin = 0; begin < slice.size; begin += kPieceElements)
        pieces_.push_back({.parameter = static_cast<int32_t>(p),
                           .tensor = slice.tensor,
                           .begin = first + begin,
                           .end = first + std::min(begin + kPieceElements, slice.size),
                           .tensor_begin = first});
      first += slice.size;
    }
  }
}

int64_t ParameterPass::BlockBytes() const {
  return (value_size_ + cotangent_size_) * int64_t{sizeof(double)};
}

ParameterPass::Block::Block(const ParameterPass& pass)
    : values_(static_cast<size_t>(pass.value_size_)),
      cotangents_(static_cast<size_t>(pass.cotangent_size_)) {}

ParameterPass::Shared::Shared(const ParameterPass& pass)
    : values_(static_cast<size_t>(pass.shared_size_)) {
  const ParameterRows none;
  Runner(pass, none, this).Forward();
}

bool ParameterPass::Run(const ParameterRows& rows, const Shared& shared, const CancelToken* token,
                        Block* block) const {
  block->first_ = rows.first;
  block->count_ = rows.count;
  std::ranges::fill(block->cotangents_, 0.0);
  Runner runner(*this, rows, shared, block, token);
  return runner.Forward() && runner.Back();
}

void ParameterPass::Add(int64_t index, std::span<const Block> blocks, const Shared& shared,
                        std::span<float* const> sums) const {
  const Piece& piece = pieces_[static_cast<size_t>(index)];
  float* const all = sums[static_cast<size_t>(piece.tensor)];
  if (all == nullptr) return;
  const Parameter& parameter = program_.parameters[static_cast<size_t>(piece.parameter)];
  const int64_t size = program_.at(parameter.value).size;
  for (const Block& block : blocks) {
    const Reader reader(*this, block.count_, shared.values_.data(), &block);
    const auto of_row = [&](int64_t r) {
      return all + (parameter.per_step ? (block.first_ + r) * size : 0) + piece.begin -
             piece.tensor_begin;
    };
    for (const Instruction* use : uses_[static_cast<size_t>(piece.parameter)]) {
      reader.ForRows(*use, [&](int64_t r, int64_t count) {
        Reader::AddMatrix(*use, reader.Values(use->operands[0], r),
                          reader.Cotangent(use->result, r), count, piece.begin, piece.end,
                          of_row(r));
        return true;
      });
    }
    if (At(parameter.value).cotangent < 0) continue;
    for (int64_t r = 0; r < reader.Rows(parameter.value); ++r) {
      const double* const from = reader.Cotangent(parameter.value, r);
      float* const to = of_row(r);
      for (int64_t e = piece.begin; e < piece.end; ++e)
        to[e - piece.begin] = static_cast<float>(double{to[e - piece.begin]} + from[e]);
    }
  }
}

}  // namespace deeppcr::program
