// SPDX-License-Identifier: Apache-2.0
#include "kernels/model/tensor_reader.h"

#include <algorithm>
#include <span>

#include "kernels/base/shape.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {

std::string TensorReader::InFile(std::string_view name) const { return StrCat(prefix_, name); }

bool TensorReader::HasBeginningWith(std::string_view prefix, std::string_view suffix) const {
  const std::string begin = InFile(prefix);
  return std::any_of(tensors_.entries().begin(), tensors_.entries().end(),
                     [&](const TensorEntry& entry) {
                       const std::string_view name = entry.name;
                       return name.size() > begin.size() + suffix.size() &&
                              name.starts_with(begin) && name.ends_with(suffix);
                     });
}

int64_t TensorReader::TotalElements() const {
  int64_t total = 0;
  for (const TensorEntry& entry : tensors_.entries()) total += NumElements(entry);
  return total;
}

absl::Status TensorReader::Append(const std::string& name, const Shape& shape,
                                  std::vector<float>& values) {
  return problems_.Add(Take(name, shape, values));
}

absl::Status TensorReader::Take(const std::string& name, const Shape& shape,
                                std::vector<float>& values) {
  const std::string in_file = InFile(name);
  const TensorEntry* entry = tensors_.Find(in_file);
  if (entry == nullptr) {
    return InvalidArgument("tensor \"", in_file, "\" of shape ", ShapeString(shape), " is missing",
                           problems_.empty() ? Elsewhere(name) : "");
  }
  used_.insert(entry->name);
  if (entry->shape != shape) {
    return InvalidArgument("tensor \"", in_file, "\": expected shape ", ShapeString(shape),
                           ", got ", ShapeString(entry->shape));
  }
  DEEPPCR_ASSIGN_OR_RETURN(const int64_t count, CheckedProduct(shape));
  DEEPPCR_RETURN_IF_ERROR(Reserve(count));
  const size_t old_size = values.size();
  values.resize(old_size + static_cast<size_t>(count));
  return ConvertToFloat(*entry, std::span<float>(values).subspan(old_size));
}

// Of the first tensor that is missing: where the file has one of its name behind another prefix.
std::string TensorReader::Elsewhere(std::string_view name) const {
  const std::string ending = StrCat(".", name);
  for (const TensorEntry& entry : tensors_.entries()) {
    if (entry.name == name || entry.name.ends_with(ending))
      return StrCat("; the file has ", Quoted(entry.name));
  }
  return "";
}

// The tensors outside the prefix, of which a few are named.
absl::Status TensorReader::NameThoseOutside() {
  constexpr int kMost = 32;
  std::string names;
  int count = 0;
  for (const TensorEntry& entry : tensors_.entries()) {
    if (entry.name.starts_with(prefix_)) continue;
    if (++count <= kMost) names += StrCat(count == 1 ? "" : ", ", Quoted(entry.name));
  }
  if (count == 0) return absl::OkStatus();
  return InvalidArgument("names that do not begin with ", Quoted(prefix_), ": ", names,
                         count > kMost ? StrCat(" and ", count - kMost, " more") : "");
}

absl::Status TensorReader::AppendIfThere(const std::string& name, const Shape& shape,
                                         std::vector<float>& values) {
  return Has(name) ? Append(name, shape, values) : absl::OkStatus();
}

absl::Status TensorReader::CheckAllUsed() {
  const std::string after = prefix_.empty() ? "" : StrCat("after ", Quoted(prefix_), " ");
  for (const TensorEntry& entry : tensors_.entries()) {
    if (!entry.name.starts_with(prefix_) || used_.contains(entry.name)) continue;
    DEEPPCR_RETURN_IF_ERROR(problems_.Add(
        InvalidArgument("tensor ", Quoted(entry.name), " of shape ", ShapeString(entry.shape),
                        " is unexpected; expected ", after, expected_names_)));
  }
  if (limits_.all_problems != nullptr) {
    if (!problems_.empty()) DEEPPCR_RETURN_IF_ERROR(problems_.Add(NameThoseOutside()));
    *limits_.all_problems = problems_;
  }
  return problems_.status();
}

// Half-precision files grow when they are converted, so the file's size bounds nothing.
absl::Status TensorReader::Reserve(int64_t elements) {
  const int64_t bytes = elements * static_cast<int64_t>(sizeof(float));
  bytes_ += bytes;
  if (bytes_ <= limits_.max_weights_bytes) return limits_.Take(bytes);
  return ResourceExhausted("weights take at least ", bytes_, " bytes as float32; ",
                           limits_.max_weights_bytes, " are allowed");
}

}  // namespace deeppcr
