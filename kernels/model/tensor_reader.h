// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_MODEL_TENSOR_READER_H_
#define DEEPPCR_KERNELS_MODEL_TENSOR_READER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "kernels/base/problems.h"
#include "kernels/model/model.h"
#include "kernels/model/weights.h"

namespace deeppcr {

// Hands out tensors by name with their shape checked, and remembers the names asked for. Allocates
// nothing for a tensor that is not in the file in the shape expected.
class TensorReader {
 public:
  using Shape = std::vector<int64_t>;

  // `expected_names` lists the tensors of the family, for the message about any other tensor. Both
  // `tensors` and `expected_names` outlive the reader. With limits.all_problems a tensor that is
  // missing or wrong is passed over, and CheckAllUsed returns the first. Names are those in the
  // file without `prefix`, which outlives the reader too; tensors of other names do not exist for
  // it.
  TensorReader(const Tensors& tensors, const ModelLimits& limits, std::string_view expected_names,
               std::string_view prefix = "")
      : tensors_(tensors),
        limits_(limits),
        expected_names_(expected_names),
        prefix_(prefix),
        problems_(limits.all_problems != nullptr) {}

  // The tensor's name in the file.
  std::string InFile(std::string_view name) const;
  bool Has(std::string_view name) const { return tensors_.Find(InFile(name)) != nullptr; }
  bool HasBeginningWith(std::string_view prefix, std::string_view suffix) const;

  // Elements of all tensors: no tensor or stack of tensors has more.
  int64_t TotalElements() const;

  // Appends the values of a tensor that must be there.
  // Errors: kInvalidArgument naming the tensor, what was expected, what came; kResourceExhausted if
  // all that was appended takes more than limits.max_weights_bytes as float32.
  absl::Status Append(const std::string& name, const Shape& shape, std::vector<float>& values);
  absl::Status AppendIfThere(const std::string& name, const Shape& shape,
                             std::vector<float>& values);

  // An error about the tensors that the caller found: as those of Append.
  absl::Status Refuse(const absl::Status& status) { return problems_.Add(status); }

  // kInvalidArgument naming a tensor that was not asked for.
  absl::Status CheckAllUsed();

 private:
  absl::Status Take(const std::string& name, const Shape& shape, std::vector<float>& values);
  std::string Elsewhere(std::string_view name) const;
  absl::Status NameThoseOutside();
  absl::Status Reserve(int64_t elements);

  const Tensors& tensors_;
  const ModelLimits& limits_;
  const std::string_view expected_names_, prefix_;
  Problems problems_;
  int64_t bytes_ = 0;
  absl::flat_hash_set<std::string_view> used_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_KERNELS_MODEL_TENSOR_READER_H_
