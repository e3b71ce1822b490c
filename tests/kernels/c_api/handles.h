// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_KERNELS_C_API_HANDLES_H_
#define DEEPPCR_TESTS_KERNELS_C_API_HANDLES_H_

// Engines, models and runs of libdeeppcr for tests.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/c_api/deeppcr.h"

namespace deeppcr::testing {

inline std::string Folder(const std::string& model) {
  return DEEPPCR_SOURCE_DIR "/deploy/models/repository/" + model + "/1";
}

struct Destroy {
  void operator()(deeppcr_engine* engine) const { deeppcr_engine_destroy(engine); }
  void operator()(deeppcr_model* model) const { deeppcr_model_destroy(model); }
  void operator()(deeppcr_token* token) const { deeppcr_token_destroy(token); }
};
template <class T>
using Owned = std::unique_ptr<T, Destroy>;

inline Owned<deeppcr_engine> NewEngine(bool gradients = false) {
  deeppcr_engine_options options = DEEPPCR_ENGINE_OPTIONS_INIT;
  options.backend = "cpu";
  options.num_threads = 2;
  options.gradients = gradients ? 1 : 0;
  deeppcr_engine* engine = nullptr;
  EXPECT_EQ(deeppcr_engine_create(&options, &engine), DEEPPCR_OK) << deeppcr_last_error();
  return Owned<deeppcr_engine>(engine);
}
inline Owned<deeppcr_model> Load(deeppcr_engine* engine, const std::string& name) {
  deeppcr_model* model = nullptr;
  EXPECT_EQ(deeppcr_model_load(engine, Folder(name).c_str(), nullptr, &model), DEEPPCR_OK)
      << deeppcr_last_error();
  return Owned<deeppcr_model>(model);
}
inline deeppcr_model_info InfoOf(const deeppcr_model* model) {
  deeppcr_model_info info = DEEPPCR_MODEL_INFO_INIT;
  EXPECT_EQ(deeppcr_model_describe(model, &info), DEEPPCR_OK);
  return info;
}

// A run with room for everything that it can give.
struct Answer {
  Answer(const deeppcr_model_info& info, int64_t n, int64_t num_steps)
      : outputs(n * info.output_dim, -7.0F),
        final_states(n * info.state_dim),
        trajectory(n * (num_steps + 1) * info.state_dim),
        reports(n) {
    view.outputs = outputs.data();
    view.final_states = final_states.data();
    view.trajectory = trajectory.data();
    view.reports = reports.data();
  }
  std::vector<float> outputs, final_states, trajectory;
  std::vector<deeppcr_report> reports;
  deeppcr_outputs view = DEEPPCR_OUTPUTS_INIT;
};

// A request of n samples with the inputs x, which it points to.
inline deeppcr_inputs Request(int64_t n, const std::vector<float>& x) {
  deeppcr_inputs inputs = DEEPPCR_INPUTS_INIT;
  inputs.num_samples = n;
  inputs.inputs = x.data();
  return inputs;
}

inline void ExpectRefused(deeppcr_status got, deeppcr_status status, const char* text) {
  EXPECT_EQ(got, status);
  EXPECT_THAT(deeppcr_last_error(), ::testing::HasSubstr(text));
}

}  // namespace deeppcr::testing

#endif  // DEEPPCR_TESTS_KERNELS_C_API_HANDLES_H_
