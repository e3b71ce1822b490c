// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_TESTS_TESTING_SIMT_EXECUTOR_H_
#define DEEPPCR_TESTS_TESTING_SIMT_EXECUTOR_H_

// Runs kernel bodies on the CPU: every GPU thread is a fiber, all of them on one thread of the
// host, one cluster of blocks after the other.
//
// A body is a function over an execution context: indices, barriers, shuffles, shared memory of its
// own block and of the other blocks of its cluster. Nothing says in which order the warps of a
// launch run, so the executor takes an order that hides nothing: a warp runs until it waits for
// something wider than a warp, and only then does the next one start. A missing barrier shows as a
// wrong answer; shared memory is full of NaN before the first store and has exactly the size that
// was asked for, so that AddressSanitizer sees an index beyond it.
//
// README.md in this folder says what the executor cannot prove.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace deeppcr::testing::simt {

inline constexpr int kWarpSize = 32;

// A grid of clusters of blocks of threads.
struct LaunchShape {
  int num_clusters = 1;
  int num_blocks = 1;       // per cluster
  int num_threads = 32;     // per block, whole warps
  size_t shared_bytes = 0;  // per block
};

// The choice of the next warp among those that can run.
enum class Order : uint8_t { kAscending, kDescending, kShuffled };

struct Schedule {
  Order order = Order::kAscending;
  uint64_t seed = 0;       // seed of kShuffled
  int disabled_site = -1;  // the barrier call that does nothing: a mutant of the kernel
};

// The result of a launch.
struct Outcome {
  // Empty if every thread ended and every barrier was reached by all threads that it waits for.
  std::string trouble;
  // The number of passes through the barrier of each site, by all threads together.
  std::vector<int64_t> passes;
};

class Launch;

// The execution context of one thread; its counterpart on a GPU is
// kernels/cuda/runtime/device_context.h.
class Thread {
 public:
  int lane() const { return thread_ % kWarpSize; }
  int warp() const { return thread_ / kWarpSize; }
  int thread() const { return thread_; }  // index in its block
  // x, which is the same in all lanes of a warp; all of them take part.
  int Uniform(int x) {
    if (Shuffle(x, 0) != x) Complain("a number that is not the same in all lanes");
    return x;
  }
  int num_threads() const { return num_threads_; }  // number per block
  int block() const { return block_; }              // index in its cluster
  int num_blocks() const { return num_blocks_; }    // number per cluster
  int cluster() const { return cluster_; }          // index in the grid
  int num_clusters() const { return num_clusters_; }

  // This block's shared memory, 16-byte aligned.
  std::byte* shared() const { return shared_; }
  // The address in another block's shared memory that corresponds to `local`, an address in this
  // block's. Both blocks are in one cluster.
  template <class T>
  T* Remote(T* local, int block) const {
    const auto offset = reinterpret_cast<std::byte*>(local) - shared_;
    return reinterpret_cast<T*>(SharedOf(block) + offset);
  }

  // Reads N floats that nobody writes during the launch; `from` is aligned to 16 bytes if N % 4 ==
  // 0, else to 8 if N % 2 == 0.
  template <int N>
  void LoadConstants(const float* from, float (&to)[N]) const {
    constexpr int kAlignment = N % 4 == 0 ? 16 : N % 2 == 0 ? 8 : 4;
    if (reinterpret_cast<uintptr_t>(from) % kAlignment != 0)
      Complain("an address that is not aligned to what is loaded at once");
    for (int i = 0; i < N; ++i) to[i] = from[i];
  }

  // Reads four or two floats that no other thread writes meanwhile; `from` is aligned to all of
  // them.
  void LoadFour(const float* from, float (&to)[4]) const { LoadConstants(from, to); }
  void LoadTwo(const float* from, float (&to)[2]) const { LoadConstants(from, to); }

  void StoreFour(const float (&from)[4], float* to) const {
    if (reinterpret_cast<uintptr_t>(to) % 16 != 0) Complain("an address that is not aligned");
    for (int i = 0; i < 4; ++i) to[i] = from[i];
  }

  // Copies N floats that nobody writes meanwhile to shared memory, some time until WaitForCopies;
  // both addresses are multiples of their bytes. The copies since the last CommitCopies are a
  // group.
  template <int N>
  void CopyAsync(const float* from, float* to) {
    if ((reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) % (4 * N) != 0)
      return Complain("a copy whose address is no multiple of its bytes");
    for (int i = 0; i < N; ++i) to[i] = std::numeric_limits<float>::quiet_NaN();
    copies_.push_back({from, to, N, groups_});
  }
  // Eight halves, as a load of four floats.
  void LoadHalves(const uint16_t* from, uint32_t (&to)[4]) {
    if (reinterpret_cast<uintptr_t>(from) % 16 != 0)
      return Complain("a load whose address is no multiple of its bytes");
    __builtin_memcpy(to, from, sizeof(to));
  }
  void CommitCopies() { ++groups_; }
  // Waits until at most N groups of this thread's copies are under way. No copy is made earlier.
  template <int N>
  void WaitForCopies() {
    const auto later = std::find_if(copies_.begin(), copies_.end(),
                                    [this](const Copy& copy) { return copy.group + N >= groups_; });
    std::for_each(copies_.begin(), later,
                  [](const Copy& copy) { std::copy_n(copy.from, copy.count, copy.to); });
    copies_.erase(copies_.begin(), later);
  }

  // Prefetches the line of global memory around `from`, which the launch must be allowed to read.
  void Prefetch(const float* from) const {
    static_cast<void>(*static_cast<const volatile float*>(from));
  }

  // Reads a value that the host may write at any time.
  int32_t LoadVolatile(const int32_t* from) const {
    return *static_cast<const volatile int32_t*>(from);
  }

  // Barriers for all threads of the warp, block or cluster. `site` is unique among the barrier
  // calls of a kernel: a mutant leaves out the barrier of one site.
  void SyncWarp(int site) { Wait(0, site); }
  void SyncBlock(int site) { Wait(1, site); }
  void SyncCluster(int site) { Wait(2, site); }
  // A block of a cluster may begin after others: what they have stored in its memory before is
  // lost. AwaitBlocks waits until every thread of the cluster has come to its AnnounceBlock, which
  // waits for nobody. There is no other barrier of the cluster between the two.
  void AnnounceBlock();
  void AwaitBlocks(int site) { Wait(3, site); }

  // True for an address in this block's shared memory.
  bool IsShared(const float* at) const;

  // Numbered elements in global memory, which the blocks of one launch hand on to one another: here
  // those of one cluster. A store is of the element and its number, which is not 0, together;
  // `to` is a multiple of 8.
  void StoreNumbered(uint64_t* to, float value, uint32_t number) const;
  // Waits until two elements, at a multiple of 16, have this number, and reads them. A mutant, in
  // which this is not a wait, reads what is there.
  void AwaitNumbered(const uint64_t* from, uint32_t number, float (&to)[2], int site);
  // The same for N pairs, whose loads are under way at a time.
  template <int N>
  void AwaitAllNumbered(const uint64_t* const (&from)[N], uint32_t number, float (&to)[N][2],
                        int site) {
    for (int i = 0; i < N; ++i) AwaitNumbered(from[i], number, to[i], site);
  }

  // The value of another lane; all lanes of the warp take part.
  template <class T>
  T Shuffle(T value, int source) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(uint64_t));
    return FromBits<T>(Exchange(ToBits(value), source));
  }
  template <class T>
  T ShuffleXor(T value, int mask) {
    return Shuffle(value, lane() ^ mask);
  }
  // The largest x >= 0 of all lanes.
  float LargestOfWarp(float x) {
    if (!(x >= 0) || std::signbit(x)) Complain("a maximum of what is not a size");
    for (int mask = 1; mask < kWarpSize; mask *= 2) x = std::max(x, ShuffleXor(x, mask));
    return x;
  }
  // True if x is true in all lanes.
  bool AllOfWarp(bool x) {
    for (int mask = 1; mask < kWarpSize; mask *= 2) x = ShuffleXor(x, mask) && x;
    return x;
  }

  // The root of x >= 0, too large or too small by up to 2^-23 of itself: here too small.
  static float ApproximateRoot(float x) {
    const float root = std::sqrt(x);
    return root > 0 && std::isfinite(root) ? std::nextafter(root, 0.0F) : root;
  }
  // The TF32 number next to x, of two the larger, and the one next to x towards zero: floats whose
  // last 13 bits are zero. A NaN or an infinity may become any other value of those.
  static float RoundToTf32(float x);
  static float CutToTf32(float x);
  // d += a b, for matrices of TF32 numbers [16, 8] and [8, 8] that lie across the lanes as those of
  // the instruction mma.m16n8k8: with g = lane / 4 and t = lane % 4,
  //   a: (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4);  b: (t, g), (t + 4, g);
  //   d: (g, 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1).
  // Sums are cut off, as those of tensor cores are where they have been looked into; what they do
  // is not documented.
  void AddProduct(const float (&a)[4], const float (&b)[2], float (&d)[4]);
  // The half-precision number next to x, and a float of the same value.
  static uint16_t ToHalf(float x);
  static float OfHalf(uint16_t half);
  // d += a b, for matrices of half-precision numbers [16, 16] and [16, 8], two in a word, that lie
  // across the lanes as those of the instruction mma.m16n8k16: with pairs p of columns of a, or of
  // rows of b,
  //   a: (g, p = t), (g + 8, p = t), (g, p = t + 4), (g + 8, p = t + 4);  b: (p = t, g), (p = t +
  //   4, g); d as of AddProduct.
  void AddHalfProduct(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&d)[4]);

 private:
  friend class Launch;
  template <class T>
  static uint64_t ToBits(T value) {
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    return bits;
  }
  template <class T>
  static T FromBits(uint64_t bits) {
    T value;
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
  }
  std::byte* SharedOf(int block) const;
  void Complain(const std::string& trouble) const;
  void Wait(int scope, int site);
  uint64_t Exchange(uint64_t bits, int source);
  struct TileOperands {
    float a[4], b[2];
  };

  struct Copy {
    const float* from;
    float* to;
    int count;
    int64_t group;
  };
  std::vector<Copy> copies_;  // under way
  int64_t groups_ = 0;        // committed
  Launch* launch_ = nullptr;
  int index_ = 0;  // index in the launch
  int thread_ = 0, num_threads_ = 0, block_ = 0, num_blocks_ = 0, cluster_ = 0, num_clusters_ = 0;
  std::byte* shared_ = nullptr;
};

// Runs `body` for every thread of the launch. Not thread-safe with itself.
Outcome Execute(const LaunchShape& shape, const Schedule& schedule,
                const std::function<void(Thread&)>& body);

}  // namespace deeppcr::testing::simt

#endif  // DEEPPCR_TESTS_TESTING_SIMT_EXECUTOR_H_
