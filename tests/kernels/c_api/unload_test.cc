// SPDX-License-Identifier: Apache-2.0
// Unloading of libdeeppcr: nothing of it runs, and no thread knows it, once its objects are gone.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/c_api/deeppcr.h"

namespace deeppcr::testing {
namespace {

class Library {
 public:
  Library() : handle_(dlopen(DEEPPCR_C_LIBRARY, RTLD_NOW | RTLD_LOCAL)) {}
  ~Library() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  bool ok() const { return handle_ != nullptr; }
  template <class Function>
  Function* Find(const char* name) const {
    return reinterpret_cast<Function*>(dlsym(handle_, name));
  }

 private:
  void* const handle_;
};

bool IsLoaded() {
  void* const handle = dlopen(DEEPPCR_C_LIBRARY, RTLD_NOW | RTLD_NOLOAD);
  if (handle != nullptr) dlclose(handle);
  return handle != nullptr;
}

size_t NumThreads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

// Answers of a batch on several threads, which this call begins and ends.
std::vector<float> Answer(const Library& library) {
  const auto create = library.Find<decltype(deeppcr_engine_create)>("deeppcr_engine_create");
  const auto load = library.Find<decltype(deeppcr_model_load)>("deeppcr_model_load");
  const auto run = library.Find<decltype(deeppcr_run)>("deeppcr_run");
  const auto last_error = library.Find<decltype(deeppcr_last_error)>("deeppcr_last_error");
  deeppcr_engine_options options = DEEPPCR_ENGINE_OPTIONS_INIT;
  options.num_threads = 3;
  options.backend = "cpu";
  deeppcr_engine* engine = nullptr;
  EXPECT_EQ(create(&options, &engine), DEEPPCR_OK) << last_error();
  deeppcr_model* model = nullptr;
  const std::string folder = DEEPPCR_SOURCE_DIR "/deploy/models/repository/digits-resnet/1";
  EXPECT_EQ(load(engine, folder.c_str(), nullptr, &model), DEEPPCR_OK) << last_error();
  std::vector<float> x(32 * 64, 0.25F), y(32 * 10);
  deeppcr_inputs inputs = DEEPPCR_INPUTS_INIT;
  inputs.num_samples = 32;
  inputs.inputs = x.data();
  deeppcr_outputs outputs = DEEPPCR_OUTPUTS_INIT;
  outputs.outputs = y.data();
  EXPECT_EQ(run(model, nullptr, &inputs, &outputs), DEEPPCR_OK) << last_error();
  // An error leaves its text with this thread.
  EXPECT_EQ(run(model, nullptr, nullptr, &outputs), DEEPPCR_INVALID_ARGUMENT);
  library.Find<decltype(deeppcr_engine_destroy)>("deeppcr_engine_destroy")(engine);
  library.Find<decltype(deeppcr_model_destroy)>("deeppcr_model_destroy")(model);
  return y;
}

TEST(UnloadTest, TheLibraryGoesAndComesBack) {
  const size_t threads = NumThreads();
  std::vector<float> first;
  for (int i = 0; i < 20; ++i) {
    {
      const Library library;
      ASSERT_TRUE(library.ok()) << dlerror();
      const std::vector<float> answer = Answer(library);
      if (i == 0) first = answer;
      EXPECT_EQ(answer, first);
    }
    EXPECT_FALSE(IsLoaded());
    EXPECT_EQ(NumThreads(), threads);
  }
}

TEST(UnloadTest, AThreadThatUsedItMayEndLater) {
  std::promise<void> used, unloaded;
  auto library = std::make_unique<Library>();
  ASSERT_TRUE(library->ok()) << dlerror();
  std::thread user([&] {
    Answer(*library);
    used.set_value();
    unloaded.get_future().wait();
  });
  used.get_future().wait();
  library.reset();
  EXPECT_FALSE(IsLoaded());
  unloaded.set_value();
  user.join();
}

}  // namespace
}  // namespace deeppcr::testing
