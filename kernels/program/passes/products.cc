// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/passes/products.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/program/passes/activations.h"
#include "kernels/program/passes/chain.h"
#include "kernels/program/passes/identities.h"
#include "kernels/program/passes/norms.h"

namespace deeppcr::program {
namespace {

// A linear layer whose rows are scaled.
struct ScaledLinear {
  ValueId operand = kNoValue;
  LinearLayer layer;
  std::vector<double> scale;  // [rows]
};

// A factor of the product as it will be written: a value as it is, or what comes in its place.
using Factor = std::variant<ValueId, Gated, Norm, ScaledLinear>;

// Factors that meet others, by the places at which they stand.
class Places {
 public:
  explicit Places(const std::vector<Term>& terms) : taken_(terms.size()) {
    for (size_t i = 0; i < terms.size(); ++i) places_.emplace(terms[i].value, i);
  }

  bool IsTaken(size_t place) const { return taken_[place]; }
  // Takes a factor, with the other factor `partner`, whose place it returns.
  std::optional<size_t> Take(size_t place, ValueId partner) {
    const auto it = places_.find(partner);
    if (it == places_.end() || it->second == place || taken_[it->second]) return std::nullopt;
    taken_[place] = taken_[it->second] = true;
    return it->second;
  }

 private:
  std::vector<bool> taken_;
  std::unordered_map<ValueId, size_t> places_;
};

// Puts pairs of factors together. Whether there were any.
bool Pair(Search& search, const Chain& chain, std::vector<std::optional<Factor>>& factors) {
  Places places(chain.terms);
  bool any = false;
  for (size_t i = 0; i < chain.terms.size(); ++i) {
    if (places.IsTaken(i)) continue;
    std::optional<size_t> place;
    if (const auto gated = GateOf(search.index(), chain.terms[i].value); gated.has_value()) {
      place = places.Take(i, gated->operand);
      if (place.has_value()) factors[*place] = *gated;
    } else if (const auto norm = NormByFactor(search, chain.terms[i].value); norm.has_value()) {
      place = places.Take(i, norm->scaled);
      if (place.has_value()) factors[*place] = *norm;
    }
    if (!place.has_value()) continue;
    factors[i].reset();
    any = true;
  }
  return any;
}

bool IsPowerOfTwo(double number) {
  int exponent = 0;
  return std::fabs(std::frexp(number, &exponent)) == 0.5;
}

// What the constants of a chain multiply to, [size of the chain].
std::vector<double> ProductOfConstants(const ProgramIndex& index, const Chain& chain) {
  std::vector<double> product;
  for (const Term& term : chain.terms) {
    const std::vector<double>& constant = index.at(term.value).constant;
    if (constant.empty()) continue;
    product.resize(constant.size(), 1.0);
    for (size_t i = 0; i < product.size(); ++i) product[i] *= constant[i];
  }
  return product;
}

// Whether row i of `numbers` [rows, cols] times scale[i] is exact in float32.
bool ScalesExactly(const std::vector<float>& numbers, int64_t cols,
                   const std::vector<double>& scale) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    const double product = numbers[i] * scale[i / static_cast<size_t>(cols)];
    if (static_cast<double>(static_cast<float>(product)) != product) return false;
  }
  return true;
}

std::shared_ptr<const std::vector<float>> Scaled(
    const std::shared_ptr<const std::vector<float>>& numbers, int64_t cols,
    const std::vector<double>& scale) {
  if (numbers == nullptr) return nullptr;
  auto scaled = std::make_shared<std::vector<float>>(*numbers);
  for (size_t i = 0; i < scaled->size(); ++i) {
    (*scaled)[i] = static_cast<float>((*numbers)[i] * scale[i / static_cast<size_t>(cols)]);
  }
  return scaled;
}

// A layer that takes a chain's constants in; nothing if it cannot exactly.
std::optional<ScaledLinear> ScaledBy(Search& search, const Instruction& linear,
                                     std::vector<double> scale) {
  const LinearLayer& layer = linear.linear;
  const auto rows = static_cast<size_t>(layer.rows);
  if (!std::ranges::all_of(scale, IsPowerOfTwo)) return std::nullopt;
  for (size_t i = rows; i < scale.size(); ++i) {
    if (scale[i] != scale[i - rows]) return std::nullopt;
  }
  scale.resize(rows);
  if (!search.Spend(layer.rows * layer.cols)) return std::nullopt;
  if (!ScalesExactly(*layer.weight, layer.cols, scale)) return std::nullopt;
  if (layer.bias != nullptr && !ScalesExactly(*layer.bias, 1, scale)) return std::nullopt;
  return ScaledLinear{linear.operands[0], layer, std::move(scale)};
}

// Puts the constants of a product of one linear layer and constants into the layer. Whether it did.
bool Scale(Search& search, const Chain& chain, std::vector<std::optional<Factor>>& factors) {
  const ProgramIndex& index = search.index();
  std::optional<size_t> host;
  for (size_t i = 0; i < chain.terms.size(); ++i) {
    if (!index.at(chain.terms[i].value).constant.empty()) continue;
    if (host.has_value()) return false;
    host = i;
  }
  const auto terms = static_cast<int64_t>(chain.terms.size());
  if (!host.has_value() || terms == 1) return false;
  const ValueId value = chain.terms[*host].value;
  const Instruction* linear = index.Inner(value, Op::kLinear);
  if (linear == nullptr || !search.Spend(terms * index.at(value).size)) return false;
  auto scaled = ScaledBy(search, *linear, ProductOfConstants(index, chain));
  if (!scaled.has_value()) return false;
  std::ranges::fill(factors, std::nullopt);
  factors[*host] = *std::move(scaled);
  return true;
}

// Writes a factor, and adds it to the terms of the product.
struct FactorWriter {
  absl::StatusOr<ValueId> operator()(ValueId value) const { return writer.Now(value); }
  absl::StatusOr<ValueId> operator()(const Norm& norm) const { return WriteNorm(writer, norm); }
  absl::StatusOr<ValueId> operator()(const Gated& gated) const {
    const ValueId operand = writer.Now(gated.operand);
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId activation,
                             WriteElementwise(writer, gated.activation, std::array{operand}));
    if (gated.scale == 1) return activation;
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId scale,
                             writer.AddNumber(gated.scale, writer.at(operand).size));
    terms.push_back({scale});
    return activation;
  }
  absl::StatusOr<ValueId> operator()(const ScaledLinear& scaled) const {
    LinearLayer layer = scaled.layer;
    layer.weight = Scaled(layer.weight, layer.cols, scaled.scale);
    layer.bias = Scaled(layer.bias, 1, scaled.scale);
    return writer.builder().AddLinear(writer.Now(scaled.operand), layer);
  }

  ProgramWriter& writer;
  std::vector<Term>& terms;
};

ValueId ReadBy(const Factor& factor) {
  if (const ValueId* value = std::get_if<ValueId>(&factor)) return *value;
  if (const Gated* gated = std::get_if<Gated>(&factor)) return gated->operand;
  if (const Norm* norm = std::get_if<Norm>(&factor)) return norm->operand;
  return std::get<ScaledLinear>(factor).operand;
}

absl::StatusOr<ValueId> WriteProduct(ProgramWriter& writer, const std::vector<Factor>& factors) {
  std::vector<Term> terms;
  for (const Factor& factor : factors) {
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId value, std::visit(FactorWriter{writer, terms}, factor));
    terms.push_back({value});
  }
  return WriteChain(writer, Op::kMultiply, terms);
}

}  // namespace

std::optional<Rewrite> RewriteProduct(Search& search, const Instruction& end) {
  const ProgramIndex& index = search.index();
  if (!EndsChain(index, end, Op::kMultiply)) return std::nullopt;
  const Chain chain = ChainThatEndsIn(index, end, Op::kMultiply);
  std::vector<std::optional<Factor>> factors;
  factors.reserve(chain.terms.size());
  for (const Term& term : chain.terms) factors.emplace_back(term.value);
  if (!Pair(search, chain, factors) && !Scale(search, chain, factors) &&
      !IsLess(LeastJoins(CountOf(index, chain)), chain.joins)) {
    return std::nullopt;
  }
  Rewrite rewrite;
  std::vector<Factor> kept;
  for (std::optional<Factor>& factor : factors) {
    if (!factor.has_value()) continue;
    rewrite.reads.push_back(ReadBy(*factor));
    kept.push_back(*std::move(factor));
  }
  rewrite.write = [kept = std::move(kept)](ProgramWriter& writer) {
    return WriteProduct(writer, kept);
  };
  return rewrite;
}

namespace {

bool IsOnState(const ProgramIndex& index, const Term& term) {
  return ClassOf(index.at(term.value)) == kOnState;
}

// The only term of a chain on the state, which comes first then; nothing where there are more.
std::optional<Term> TakeOnState(const ProgramIndex& index, std::vector<Term>* terms) {
  const auto is_on_state = [&](const Term& term) { return IsOnState(index, term); };
  if (std::ranges::count_if(*terms, is_on_state) != 1) return std::nullopt;
  const auto found = std::ranges::find_if(*terms, is_on_state);
  const Term term = *found;
  terms->erase(found);
  return term;
}

std::vector<Term> Now(const ProgramWriter& writer, std::vector<Term> terms) {
  for (Term& term : terms) term.value = writer.Now(term.value);
  return terms;
}

}  // namespace

std::optional<Rewrite> DistributeProduct(Search& search, const Instruction& end) {
  const ProgramIndex& index = search.index();
  if (!EndsChain(index, end, Op::kMultiply)) return std::nullopt;
  std::vector<Term> factors = ChainThatEndsIn(index, end, Op::kMultiply).terms;
  const std::optional<Term> over = TakeOnState(index, &factors);
  const Instruction* sum = over.has_value() ? index.Inner(over->value, Op::kAdd) : nullptr;
  if (sum == nullptr) return std::nullopt;
  std::vector<Term> addends = ChainThatEndsIn(index, *sum, Op::kAdd).terms;
  const std::optional<Term> moves = TakeOnState(index, &addends);
  if (!moves.has_value() || moves->negative || addends.empty()) return std::nullopt;
  const Instruction* product = index.Inner(moves->value, Op::kMultiply);
  if (product == nullptr) return std::nullopt;
  std::vector<Term> scaled = ChainThatEndsIn(index, *product, Op::kMultiply).terms;
  if (std::ranges::all_of(scaled, [&](const Term& term) { return IsOnState(index, term); }))
    return std::nullopt;
  Rewrite rewrite;
  for (const std::vector<Term>* terms : {&factors, &addends, &scaled})
    for (const Term& term : *terms) rewrite.reads.push_back(term.value);
  rewrite.write = [factors, addends, scaled](ProgramWriter& writer) -> absl::StatusOr<ValueId> {
    const std::vector<Term> by = Now(writer, factors);
    std::vector<Term> moving = Now(writer, scaled);
    moving.insert(moving.end(), by.begin(), by.end());
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId first, WriteChain(writer, Op::kMultiply, moving));
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId factor, WriteChain(writer, Op::kMultiply, by));
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId addend,
                             WriteChain(writer, Op::kAdd, Now(writer, addends)));
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId second,
                             WriteElementwise(writer, Op::kMultiply, std::array{addend, factor}));
    return WriteElementwise(writer, Op::kAdd, std::array{first, second});
  };
  return rewrite;
}

}  // namespace deeppcr::program
