// SPDX-License-Identifier: Apache-2.0
#include "kernels/program/passes/sums.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/program/passes/chain.h"

namespace deeppcr::program {
namespace {

// A linear layer among the terms of a chain that takes the chain's constants into its bias.
struct Host {
  size_t term = 0;
  ValueId operand = kNoValue;
  LinearLayer layer;
};

// What the constants of a chain add up to, [size of the chain].
std::vector<double> SumOfConstants(const ProgramIndex& index, const Chain& chain) {
  std::vector<double> sum;
  for (const Term& term : chain.terms) {
    const std::vector<double>& constant = index.at(term.value).constant;
    if (constant.empty()) continue;
    sum.resize(constant.size());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += term.negative ? -constant[i] : constant[i];
  }
  return sum;
}

// bias + sign addend, which has to be the same for every repetition; null if that cannot be said.
std::shared_ptr<const std::vector<float>> WithAddend(const LinearLayer& layer,
                                                     const std::vector<double>& addend,
                                                     double sign) {
  const auto rows = static_cast<size_t>(layer.rows);
  for (size_t i = rows; i < addend.size(); ++i) {
    if (addend[i] != addend[i - rows]) return nullptr;
  }
  auto bias = std::make_shared<std::vector<float>>(rows);
  for (size_t i = 0; i < rows; ++i) {
    const double before = layer.bias == nullptr ? 0.0 : double{(*layer.bias)[i]};
    (*bias)[i] = static_cast<float>(before + sign * addend[i]);
    if (!std::isfinite((*bias)[i])) return nullptr;
  }
  return bias;
}

int LowestClass(const ByClass& terms) {
  for (int k = kOnTime; k < kNumClasses; ++k) {
    if (terms[static_cast<size_t>(k)] > 0) return k;
  }
  return kOnNothing;
}

std::optional<Host> HostOf(Search& search, const Chain& chain, const ByClass& terms) {
  const ProgramIndex& index = search.index();
  const int lowest = LowestClass(terms);
  const int64_t size = index.at(chain.terms[0].value).size;
  if (terms[kOnNothing] == 0 || lowest == kOnTime) return std::nullopt;
  for (size_t i = 0; i < chain.terms.size(); ++i) {
    const Term& term = chain.terms[i];
    const Instruction* linear = index.Inner(term.value, Op::kLinear);
    if (linear == nullptr || ClassOf(index.at(term.value)) != lowest) continue;
    if (!search.Spend((1 + terms[kOnNothing]) * size)) return std::nullopt;
    Host host = {i, linear->operands[0], linear->linear};
    host.layer.bias =
        WithAddend(linear->linear, SumOfConstants(index, chain), term.negative ? -1 : 1);
    if (host.layer.bias == nullptr) return std::nullopt;
    return host;
  }
  return std::nullopt;
}

// A product among the terms of a chain that takes what depends on the time alone, or on nothing, as
// its bias: the place of its term.
std::optional<size_t> ProductOf(const ProgramIndex& index, const Chain& chain,
                                const ByClass& terms) {
  if (terms[kOnNothing] + terms[kOnTime] == 0) return std::nullopt;
  for (size_t i = 0; i < chain.terms.size(); ++i) {
    const Instruction* product = index.Inner(chain.terms[i].value, Op::kProduct);
    if (product != nullptr && product->operands.size() == 2 && product->linear.repeat == 1 &&
        !chain.terms[i].negative)
      return i;
  }
  return std::nullopt;
}

bool IsBias(const ProgramIndex& index, const Term& term) {
  return (index.at(term.value).depends & ~kOnTime) == 0;
}

// The sum with the bias of its product inside it.
Rewrite SumWithBias(const ProgramIndex& index, const Chain& chain, size_t host) {
  const Instruction& product = *index.Producer(chain.terms[host].value);
  Rewrite rewrite = {.reads = product.operands, .write = nullptr};
  std::vector<Term> bias, others;
  for (size_t i = 0; i < chain.terms.size(); ++i) {
    if (i == host) continue;
    rewrite.reads.push_back(chain.terms[i].value);
    (IsBias(index, chain.terms[i]) ? bias : others).push_back(chain.terms[i]);
  }
  rewrite.write = [bias, others, of = product.operands,
                   sizes = product.linear](ProgramWriter& writer) -> absl::StatusOr<ValueId> {
    const auto now = [&](std::vector<Term> terms) {
      for (Term& term : terms) term.value = writer.Now(term.value);
      return terms;
    };
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId sum, WriteChain(writer, Op::kAdd, now(bias)));
    const std::vector<ValueId> operands = writer.Now(of);
    DEEPPCR_ASSIGN_OR_RETURN(const ValueId value,
                             writer.builder().AddProduct(operands[0], operands[1], sum, sizes));
    std::vector<Term> terms = now(others);
    // Behind the others, as the branch of a residual sum stands.
    terms.push_back({value});
    return WriteChain(writer, Op::kAdd, terms);
  };
  return rewrite;
}

// The chain's terms in the new program.
absl::StatusOr<ValueId> WriteSum(ProgramWriter& writer, const std::vector<Term>& terms,
                                 const std::optional<Host>& host) {
  std::vector<Term> now;
  now.reserve(terms.size());
  for (size_t i = 0; i < terms.size(); ++i) {
    if (host.has_value() && i == host->term) {
      DEEPPCR_ASSIGN_OR_RETURN(const ValueId linear,
                               writer.builder().AddLinear(writer.Now(host->operand), host->layer));
      now.push_back({linear, terms[i].negative});
    } else if (terms[i].value != kNoValue) {
      now.push_back({writer.Now(terms[i].value), terms[i].negative});
    }
  }
  return WriteChain(writer, Op::kAdd, now);
}

}  // namespace

std::optional<Rewrite> RegroupSum(Search& search, const Instruction& end) {
  const ProgramIndex& index = search.index();
  if (!EndsChain(index, end, Op::kAdd)) return std::nullopt;
  Chain chain = ChainThatEndsIn(index, end, Op::kAdd);
  ByClass count = CountOf(index, chain);
  if (const auto product = ProductOf(index, chain, count); product.has_value())
    return SumWithBias(index, chain, *product);
  std::optional<Host> host = HostOf(search, chain, count);
  if (host.has_value()) count[kOnNothing] = 0;
  if (!IsLess(LeastJoins(count), chain.joins)) return std::nullopt;
  Rewrite rewrite;
  for (size_t i = 0; i < chain.terms.size(); ++i) {
    Term& term = chain.terms[i];
    if (host.has_value() && i == host->term) {
      rewrite.reads.push_back(host->operand);
    } else if (host.has_value() && !index.at(term.value).constant.empty()) {
      term.value = kNoValue;
    } else {
      rewrite.reads.push_back(term.value);
    }
  }
  rewrite.write = [terms = std::move(chain.terms), host = std::move(host)](ProgramWriter& writer) {
    return WriteSum(writer, terms, host);
  };
  return rewrite;
}

}  // namespace deeppcr::program
