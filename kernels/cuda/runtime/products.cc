// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/runtime/products.h"

#include <cublas_v2.h>
#include <dlfcn.h>

#include <string>

#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr::cuda {
namespace {

// Types of cublasGemmStridedBatchedEx and cublasGemmEx, names that C++ overloads.
using GemmStridedBatchedEx = cublasStatus_t (*)(
    cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const void* alpha,
    const void* a, cudaDataType, int lda, long long stride_a, const void* b, cudaDataType, int ldb,
    long long stride_b, const void* beta, void* c, cudaDataType, int ldc, long long stride_c,
    int batch_count, cublasComputeType_t, cublasGemmAlgo_t);

using GemmEx = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m,
                                  int n, int k, const void* alpha, const void* a, cudaDataType,
                                  int lda, const void* b, cudaDataType, int ldb, const void* beta,
                                  void* c, cudaDataType, int ldc, cublasComputeType_t,
                                  cublasGemmAlgo_t);

// Functions of cuBLAS that we call.
struct Library {
  decltype(&cublasCreate_v2) create = nullptr;
  decltype(&cublasDestroy_v2) destroy = nullptr;
  decltype(&cublasSetStream_v2) set_stream = nullptr;
  decltype(&cublasSetWorkspace_v2) set_workspace = nullptr;
  decltype(&cublasGetProperty) get_property = nullptr;
  GemmStridedBatchedEx multiply_batch = nullptr;
  GemmEx multiply = nullptr;
};

template <class Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

absl::StatusOr<Library> Open() {
  const std::string file = StrCat("libcublas.so.", CUBLAS_VER_MAJOR);
  void* const opened = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  Library library;
  if (opened != nullptr && Find(opened, "cublasCreate_v2", &library.create) &&
      Find(opened, "cublasDestroy_v2", &library.destroy) &&
      Find(opened, "cublasSetStream_v2", &library.set_stream) &&
      Find(opened, "cublasSetWorkspace_v2", &library.set_workspace) &&
      Find(opened, "cublasGetProperty", &library.get_property) &&
      Find(opened, "cublasGemmStridedBatchedEx", &library.multiply_batch) &&
      Find(opened, "cublasGemmEx", &library.multiply))
    return library;
  const char* const why = dlerror();
  return absl::UnimplementedError(
      StrCat("the iterative solvers of this model need cuBLAS on this GPU: ",
             std::string_view(why == nullptr ? file.c_str() : why),
             "; install it (libcublas of the CUDA toolkit), or use --backend cpu"));
}

// Library that is opened once and never closed.
const absl::StatusOr<Library>& TheLibrary() {
  static const auto* library = new absl::StatusOr<Library>(Open());
  return *library;
}

absl::Status StatusOf(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::UnavailableError(StrCat("cuBLAS: ", what, ": status ", static_cast<int>(status)));
}

// Error for a handle that could not be made. A handle takes memory, and where none is left cuBLAS
// returns various errors: memory is short unless the device itself has failed.
absl::Status NoHandle(cublasStatus_t status) {
  if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess)
    return absl::UnavailableError(StrCat("CUDA: ", std::string_view(cudaGetErrorString(error))));
  return ResourceExhausted("GPU memory: cuBLAS could not make a handle, status ",
                           static_cast<int>(status));
}

class CublasProducts final : public Products {
 public:
  CublasProducts(const Library& library, cudaStream_t stream)
      : library_(library), stream_(stream) {}
  ~CublasProducts() override {
    if (handle_ != nullptr) library_.destroy(handle_);
  }

  absl::Status Prepare(void* workspace, int64_t bytes) {
    if (const cublasStatus_t status = library_.create(&handle_); status != CUBLAS_STATUS_SUCCESS)
      return NoHandle(status);
    DEEPPCR_RETURN_IF_ERROR(StatusOf(library_.set_stream(handle_, stream_), "setting its stream"));
    return StatusOf(library_.set_workspace(handle_, workspace, static_cast<size_t>(bytes)),
                    "setting its workspace");
  }

  // cuBLAS knows matrices by columns and sees transposes: left^T right^T = (right left)^T.
  absl::Status Multiply(const GemmArgs& args) override {
    const float one = 1.0F, zero = 0.0F;
    const int w = args.width;
    return StatusOf(
        library_.multiply_batch(handle_, CUBLAS_OP_N, CUBLAS_OP_N, w, w, w, &one, args.left,
                                CUDA_R_32F, w, args.stride, args.right, CUDA_R_32F, w, args.stride,
                                &zero, args.product, CUDA_R_32F, w, args.product_stride, args.count,
                                CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "products of matrices");
  }
  // weights vectors^T = products^T.
  absl::Status Multiply(const LayerGemmArgs& args) override {
    const float one = 1.0F, zero = 0.0F;
    return StatusOf(
        library_.multiply(handle_, CUBLAS_OP_T, CUBLAS_OP_N, args.outputs, args.rows, args.inputs,
                          &one, args.weights, CUDA_R_32F, args.inputs, args.vectors, CUDA_R_32F,
                          args.inputs, &zero, args.products, CUDA_R_32F, args.outputs,
                          CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_GEMM_DEFAULT),
        "products with a layer");
  }

 private:
  const Library& library_;
  const cudaStream_t stream_;
  cublasHandle_t handle_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Products>> Products::New(cudaStream_t stream, void* workspace,
                                                        int64_t bytes) {
  const absl::StatusOr<Library>& library = TheLibrary();
  if (!library.ok()) return library.status();
  auto products = std::make_unique<CublasProducts>(*library, stream);
  DEEPPCR_RETURN_IF_ERROR(products->Prepare(workspace, bytes));
  return std::unique_ptr<Products>(std::move(products));
}

std::string ProductsVersion() {
  if (!TheLibrary().ok()) return "none";
  int major = 0, minor = 0, patch = 0;
  TheLibrary()->get_property(MAJOR_VERSION, &major);
  TheLibrary()->get_property(MINOR_VERSION, &minor);
  TheLibrary()->get_property(PATCH_LEVEL, &patch);
  return StrCat(major, ".", minor, ".", patch);
}

}  // namespace deeppcr::cuda
