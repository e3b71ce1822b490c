// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_EDITED_MODEL_H_
#define DEEPPCR_TESTS_TESTING_EDITED_MODEL_H_

#include <string>
#include <vector>

namespace deeppcr::testing {

// The files of a model, of which single tensors can be read and replaced: those of
// model.safetensors, and else initialisers of denoiser.onnx or block.onnx. A failed setup aborts
// the test program.
class EditedModel {
 public:
  // Copies the files of `from` to `to`, which is made.
  EditedModel(const std::string& from, const std::string& to);

  const std::string& directory() const { return directory_; }
  std::vector<float> Read(const std::string& tensor) const;
  // Replaces all values; the tensor keeps its type.
  void Write(const std::string& tensor, const std::vector<float>& values) const;

 private:
  std::string directory_;
};

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_TESTING_EDITED_MODEL_H_
