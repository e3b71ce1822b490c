// SPDX-License-Identifier: Apache-2.0
// Operators that move elements and compute none.

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"
#include "kernels/program/onnx/operators.h"

namespace deeppcr::program {
namespace {

int64_t RankOf(const Tensor& tensor) { return static_cast<int64_t>(tensor.shape.size()); }

absl::StatusOr<Tensor> Identity(Call& call) { return call.in(0); }

absl::StatusOr<Tensor> Dropout(Call& call) {
  call.Ignore("ratio");
  call.Ignore("seed");
  if (!call.Has(2)) return call.in(0);
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t training, call.Integer(2, "training_mode"));
  if (training != 0) return InvalidArgument("random numbers: export the module in eval mode");
  return call.in(0);
}

// Extents as ONNX writes them: -1 for what is left, 0 for the operand's own.
absl::StatusOr<Tensor> Reshape(Call& call) {
  const Tensor& x = call.in(0);
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t allow_zero, call.Int("allowzero", 0));
  DEEPPCR_ASSIGN_OR_RETURN(Shape shape, call.Integers(1, "the shape"));
  int64_t known = 1;
  int64_t* open = nullptr;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0 && allow_zero == 0) {
      if (i >= x.shape.size()) return InvalidArgument("extent ", i, " of the operand is not there");
      shape[i] = x.shape[i];
    }
    if (shape[i] == -1 && open == nullptr) {
      open = &shape[i];
      continue;
    }
    DEEPPCR_ASSIGN_OR_RETURN(known, CheckedProduct({known, shape[i]}));
  }
  if (open != nullptr) {
    if (known == 0 || NumElements(x.shape) % known != 0) {
      return InvalidArgument("shape ", ShapeString(x.shape), " cannot be seen as ",
                             ShapeString(shape));
    }
    *open = NumElements(x.shape) / known;
  }
  return call.lowering.Reshaped(x, std::move(shape));
}

absl::StatusOr<Tensor> Flatten(Call& call) {
  const Tensor& x = call.in(0);
  DEEPPCR_ASSIGN_OR_RETURN(int64_t axis, call.Int("axis", 1));
  if (axis != RankOf(x)) {
    DEEPPCR_ASSIGN_OR_RETURN(axis, NormalizedAxis(axis, RankOf(x)));
  }
  const std::span<const int64_t> shape = x.shape;
  return call.lowering.Reshaped(x, {NumElements(shape.subspan(0, static_cast<size_t>(axis))),
                                    NumElements(shape.subspan(static_cast<size_t>(axis)))});
}

absl::StatusOr<Tensor> Squeeze(Call& call) {
  const Tensor& x = call.in(0);
  DEEPPCR_ASSIGN_OR_RETURN(std::vector<int64_t> axes, call.AxesOf(1, 13));
  const bool all = axes.empty();
  DEEPPCR_ASSIGN_OR_RETURN(axes, NormalizedAxes(std::move(axes), RankOf(x)));
  Shape shape;
  for (int64_t axis = 0; axis < RankOf(x); ++axis) {
    const int64_t extent = x.shape[static_cast<size_t>(axis)];
    const bool chosen = all ? extent == 1 : std::binary_search(axes.begin(), axes.end(), axis);
    if (!chosen) shape.push_back(extent);
  }
  return call.lowering.Reshaped(x, std::move(shape));
}

absl::StatusOr<Tensor> Unsqueeze(Call& call) {
  const Tensor& x = call.in(0);
  DEEPPCR_ASSIGN_OR_RETURN(std::vector<int64_t> axes, call.AxesOf(1, 13));
  const int64_t rank = RankOf(x) + static_cast<int64_t>(axes.size());
  DEEPPCR_ASSIGN_OR_RETURN(axes, NormalizedAxes(std::move(axes), rank));
  Shape shape = x.shape;
  for (const int64_t axis : axes) shape.insert(shape.begin() + axis, 1);
  return call.lowering.Reshaped(x, std::move(shape));
}

absl::StatusOr<Tensor> Transpose(Call& call) {
  const Tensor& x = call.in(0);
  std::vector<int64_t> reversed(x.shape.size());
  std::iota(reversed.rbegin(), reversed.rend(), 0);
  DEEPPCR_ASSIGN_OR_RETURN(const std::vector<int64_t> order, call.Ints("perm", reversed));
  DEEPPCR_ASSIGN_OR_RETURN(const std::vector<int64_t> sorted, NormalizedAxes(order, RankOf(x)));
  if (sorted.size() != x.shape.size() ||
      std::any_of(order.begin(), order.end(), [](int64_t axis) { return axis < 0; })) {
    return InvalidArgument("attribute perm: expected every axis once");
  }
  return call.lowering.Transposed(x, order);
}

absl::StatusOr<Tensor> Expand(Call& call) {
  DEEPPCR_ASSIGN_OR_RETURN(const Shape wanted, call.Integers(1, "the shape"));
  DEEPPCR_RETURN_IF_ERROR(CheckedProduct(wanted).status());
  DEEPPCR_ASSIGN_OR_RETURN(Shape shape, BroadcastShape(call.in(0).shape, wanted));
  return call.lowering.Broadcast(call.in(0), std::move(shape));
}

// Seen as [1, n0, 1, n1 ..], broadcast to [r0, n0, r1, n1 ..].
absl::StatusOr<Tensor> Tile(Call& call) {
  const Tensor& x = call.in(0);
  DEEPPCR_ASSIGN_OR_RETURN(const std::vector<int64_t> repeats, call.Integers(1, "the repeats"));
  if (repeats.size() != x.shape.size()) {
    return InvalidArgument("input 1, the repeats: expected one for each axis");
  }
  Shape apart, spread, shape;
  for (size_t i = 0; i < repeats.size(); ++i) {
    apart.insert(apart.end(), {1, x.shape[i]});
    spread.insert(spread.end(), {repeats[i], x.shape[i]});
    DEEPPCR_ASSIGN_OR_RETURN(const int64_t extent, CheckedProduct({repeats[i], x.shape[i]}));
    shape.push_back(extent);
  }
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor seen, call.lowering.Reshaped(x, std::move(apart)));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor tiled, call.lowering.Broadcast(seen, std::move(spread)));
  return call.lowering.Reshaped(tiled, std::move(shape));
}

// Part of an axis: elements first, first + step ..
struct Range {
  int64_t first = 0, step = 1, size = 0;
};

absl::StatusOr<Tensor> Sliced(Lowering& lowering, const Tensor& x,
                              const std::vector<Range>& ranges) {
  const Shape from = StridesOf(x.shape);
  Shape shape, strides;
  int64_t offset = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    shape.push_back(ranges[i].size);
    strides.push_back(ranges[i].step * from[i]);
    offset += ranges[i].first * from[i];
  }
  return lowering.Strided(x, std::move(shape), strides, offset);
}

std::vector<Range> WholeRanges(const Tensor& x) {
  std::vector<Range> ranges;
  for (const int64_t extent : x.shape) ranges.push_back({.size = extent});
  return ranges;
}

// ONNX's rule for bounds beyond the ends.
absl::StatusOr<Range> RangeOf(int64_t start, int64_t end, int64_t step, int64_t extent) {
  if (step == 0) return InvalidArgument("a slice with step 0");
  const auto from_front = [&](int64_t bound) { return bound < 0 ? bound + extent : bound; };
  const int64_t least = step > 0 ? 0 : -1, most = step > 0 ? extent : extent - 1;
  const int64_t first =
      std::clamp(from_front(start), step > 0 ? 0 : int64_t{0}, std::max<int64_t>(most, 0));
  const int64_t last = std::clamp(from_front(end), least, std::max(most, least));
  const int64_t length = step > 0 ? last - first : first - last;
  // No extent comes near the ends of 64 bits, hence neither does a step that matters.
  const int64_t size_of_step = step == std::numeric_limits<int64_t>::min()
                                   ? std::numeric_limits<int64_t>::max()
                                   : std::abs(step);
  if (length <= 0 || extent == 0) return Range{};
  const int64_t size = (length - 1) / size_of_step + 1;
  return Range{.first = first, .step = size == 1 ? 1 : step, .size = size};
}

struct SliceBounds {
  std::vector<int64_t> starts, ends, axes, steps;
};

absl::StatusOr<SliceBounds> BoundsOf(Call& call) {
  SliceBounds bounds;
  if (call.opset < 10) {
    DEEPPCR_ASSIGN_OR_RETURN(bounds.starts, call.Ints("starts", {}));
    DEEPPCR_ASSIGN_OR_RETURN(bounds.ends, call.Ints("ends", {}));
    DEEPPCR_ASSIGN_OR_RETURN(bounds.axes, call.Ints("axes", {}));
  } else {
    DEEPPCR_ASSIGN_OR_RETURN(bounds.starts, call.Integers(1, "the starts"));
    DEEPPCR_ASSIGN_OR_RETURN(bounds.ends, call.Integers(2, "the ends"));
    if (call.Has(3)) {
      DEEPPCR_ASSIGN_OR_RETURN(bounds.axes, call.Integers(3, "the axes"));
    }
    if (call.Has(4)) {
      DEEPPCR_ASSIGN_OR_RETURN(bounds.steps, call.Integers(4, "the steps"));
    }
  }
  if (bounds.axes.empty()) {
    bounds.axes.resize(bounds.starts.size());
    std::iota(bounds.axes.begin(), bounds.axes.end(), 0);
  }
  if (bounds.steps.empty()) bounds.steps.resize(bounds.starts.size(), 1);
  const size_t size = bounds.starts.size();
  if (bounds.ends.size() != size || bounds.axes.size() != size || bounds.steps.size() != size) {
    return InvalidArgument("starts, ends, axes and steps of different lengths");
  }
  return bounds;
}

absl::StatusOr<Tensor> Slice(Call& call) {
  const Tensor& x = call.in(0);
  DEEPPCR_ASSIGN_OR_RETURN(const SliceBounds bounds, BoundsOf(call));
  std::vector<Range> ranges = WholeRanges(x);
  for (size_t i = 0; i < bounds.axes.size(); ++i) {
    DEEPPCR_ASSIGN_OR_RETURN(const int64_t axis, NormalizedAxis(bounds.axes[i], RankOf(x)));
    const auto at = static_cast<size_t>(axis);
    DEEPPCR_ASSIGN_OR_RETURN(
        ranges[at], RangeOf(bounds.starts[i], bounds.ends[i], bounds.steps[i], x.shape[at]));
  }
  return Sliced(call.lowering, x, ranges);
}

// Extents of the parts along the axis that is split.
absl::StatusOr<std::vector<int64_t>> PartsOf(Call& call, int64_t extent) {
  std::vector<int64_t> parts;
  if (call.opset < 13) {
    DEEPPCR_ASSIGN_OR_RETURN(parts, call.Ints("split", {}));
  } else if (call.Has(1)) {
    DEEPPCR_ASSIGN_OR_RETURN(parts, call.Integers(1, "the split"));
  }
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t count,
                           call.Int("num_outputs", static_cast<int64_t>(call.node.outputs.size())));
  if (!parts.empty()) return parts;
  if (count < 1 || count > extent || count > std::ssize(call.node.outputs)) {
    return InvalidArgument("a split of ", extent, " elements into ", count, " parts");
  }
  // The last part has what is left.
  parts.assign(static_cast<size_t>(count), (extent - 1) / count + 1);
  parts.back() = extent - (count - 1) * parts[0];
  return parts;
}

absl::StatusOr<Tensors> Split(Call& call) {
  const Tensor& x = call.in(0);
  DEEPPCR_ASSIGN_OR_RETURN(int64_t axis, call.Int("axis", 0));
  DEEPPCR_ASSIGN_OR_RETURN(axis, NormalizedAxis(axis, RankOf(x)));
  const int64_t extent = x.shape[static_cast<size_t>(axis)];
  DEEPPCR_ASSIGN_OR_RETURN(const std::vector<int64_t> parts, PartsOf(call, extent));
  Tensors outputs;
  int64_t first = 0;
  for (const int64_t part : parts) {
    if (part < 0 || part > extent - first) {
      return InvalidArgument("a split of ", extent, " elements into ", ShapeString(parts));
    }
    std::vector<Range> ranges = WholeRanges(x);
    ranges[static_cast<size_t>(axis)] = {.first = first, .size = part};
    first += part;
    DEEPPCR_ASSIGN_OR_RETURN(Tensor output, Sliced(call.lowering, x, ranges));
    outputs.push_back(std::move(output));
  }
  if (first != extent) {
    return InvalidArgument("a split of ", extent, " elements into ", ShapeString(parts));
  }
  return outputs;
}

absl::Status CheckJoinable(const Tensor& a, const Tensor& b, size_t axis) {
  Shape other = b.shape;
  if (other.size() == a.shape.size()) other[axis] = a.shape[axis];
  if (other == a.shape && a.type == b.type) return absl::OkStatus();
  return InvalidArgument("shapes ", ShapeString(a.shape), " (", OnnxTypeName(a.type), ") and ",
                         ShapeString(b.shape), " (", OnnxTypeName(b.type),
                         ") cannot be joined along axis ", axis);
}

absl::StatusOr<Tensor> Concat(Call& call) {
  const Tensor& first = call.in(0);
  DEEPPCR_ASSIGN_OR_RETURN(int64_t axis, call.Int("axis", 0));
  DEEPPCR_ASSIGN_OR_RETURN(axis, NormalizedAxis(axis, RankOf(first)));
  const auto at = static_cast<size_t>(axis);
  Shape shape = first.shape;
  shape[at] = 0;
  std::vector<Tensor> operands;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (!call.Has(i)) return InvalidArgument("input ", i, " is missing");
    DEEPPCR_RETURN_IF_ERROR(CheckJoinable(first, call.in(i), at));
    if (__builtin_add_overflow(shape[at], call.in(i).shape[at], &shape[at])) {
      return InvalidArgument("an axis beyond 64 bits");
    }
    if (NumElements(call.in(i).shape) > 0) operands.push_back(call.in(i));
  }
  if (operands.empty()) return call.lowering.Reshaped(first, std::move(shape));
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t size, call.lowering.SpendShape(shape));
  std::vector<Element> elements;
  elements.reserve(static_cast<size_t>(size));
  const int64_t outer = NumElements(std::span(shape).subspan(0, at));
  for (int64_t row = 0; row < outer; ++row) {
    for (size_t k = 0; k < operands.size(); ++k) {
      const int64_t part = NumElements(std::span(operands[k].shape).subspan(at));
      for (int64_t i = 0; i < part; ++i) {
        elements.push_back({static_cast<int32_t>(k), row * part + i});
      }
    }
  }
  return call.lowering.Arranged(operands, std::move(shape), std::move(elements));
}

struct Padding {
  std::vector<int64_t> before, after;  // of each axis
};

absl::StatusOr<Padding> PaddingOf(Call& call, int64_t rank) {
  std::vector<int64_t> pads;
  if (call.opset < 11) {
    DEEPPCR_ASSIGN_OR_RETURN(pads, call.Ints("pads", {}));
  } else {
    DEEPPCR_ASSIGN_OR_RETURN(pads, call.Integers(1, "the pads"));
  }
  std::vector<int64_t> axes(static_cast<size_t>(rank));
  std::iota(axes.begin(), axes.end(), 0);
  if (call.Has(3)) {
    DEEPPCR_ASSIGN_OR_RETURN(axes, call.Integers(3, "the axes"));
  }
  if (pads.size() != 2 * axes.size()) {
    return InvalidArgument("pads: expected two for each axis, got ", pads.size());
  }
  Padding padding{.before = std::vector<int64_t>(static_cast<size_t>(rank)),
                  .after = std::vector<int64_t>(static_cast<size_t>(rank))};
  for (size_t i = 0; i < axes.size(); ++i) {
    DEEPPCR_ASSIGN_OR_RETURN(const int64_t axis, NormalizedAxis(axes[i], rank));
    padding.before[static_cast<size_t>(axis)] = pads[i];
    padding.after[static_cast<size_t>(axis)] = pads[i + axes.size()];
  }
  return padding;
}

absl::StatusOr<Tensor> PadValue(Call& call) {
  if (call.opset < 11) {
    DEEPPCR_ASSIGN_OR_RETURN(const double value, call.Float("value", 0));
    return Lowering::Scalar(value, call.in(0).type);
  }
  if (!call.Has(2)) return Lowering::Scalar(0, call.in(0).type);
  if (NumElements(call.in(2).shape) != 1) return InvalidArgument("input 2: expected one number");
  return call.in(2);
}

// Far above every limit, and far below what overflows.
constexpr int64_t kMostPads = int64_t{1} << 40;

// With one constant around; negative pads take away.
absl::StatusOr<Tensor> Pad(Call& call) {
  const Tensor& x = call.in(0);
  DEEPPCR_ASSIGN_OR_RETURN(const std::string mode, call.String("mode", "constant"));
  if (mode != "constant") {
    return InvalidArgument("attribute mode: expected \"constant\", got ", Quoted(mode));
  }
  DEEPPCR_ASSIGN_OR_RETURN(const Padding padding, PaddingOf(call, RankOf(x)));
  DEEPPCR_ASSIGN_OR_RETURN(const Tensor value, PadValue(call));
  Shape shape;
  for (size_t i = 0; i < x.shape.size(); ++i) {
    if (std::max(padding.before[i], padding.after[i]) > kMostPads ||
        std::min(padding.before[i], padding.after[i]) < -kMostPads || x.shape[i] > kMostPads) {
      return InvalidArgument("pads beyond 2^40 elements");
    }
    shape.push_back(padding.before[i] + x.shape[i] + padding.after[i]);
  }
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t size, call.lowering.SpendShape(shape));
  const Shape strides = StridesOf(shape), from = StridesOf(x.shape);
  std::vector<Element> elements;
  elements.reserve(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    Element element = {0, 0};
    for (size_t k = 0; k < shape.size(); ++k) {
      const int64_t place = i / strides[k] % shape[k] - padding.before[k];
      if (place < 0 || place >= x.shape[k]) element = {1, 0};
      if (element.operand == 0) element.index += place * from[k];
    }
    elements.push_back(element);
  }
  return call.lowering.Arranged({{x, value}}, std::move(shape), std::move(elements));
}

constexpr OperatorRow kRows[] = {
    {"Concat", 7, 1, kAnyNumber, One<Concat>},
    {"Dropout", 7, 1, 3, One<Dropout>},
    {"Expand", 8, 2, 2, One<Expand>},
    {"Flatten", 7, 1, 1, One<Flatten>},
    {"Identity", 7, 1, 1, One<Identity>},
    {"Pad", 7, 1, 4, One<Pad>},
    {"Reshape", 7, 2, 2, One<Reshape>},
    {"Slice", 7, 1, 5, One<Slice>},
    {"Split", 7, 1, 2, Split},
    {"Squeeze", 7, 1, 2, One<Squeeze>},
    {"Tile", 7, 2, 2, One<Tile>},
    {"Transpose", 7, 1, 1, One<Transpose>},
    {"Unsqueeze", 7, 1, 2, One<Unsqueeze>},
};

}  // namespace

std::span<const OperatorRow> ShapeOperators() { return kRows; }

}  // namespace deeppcr::program
