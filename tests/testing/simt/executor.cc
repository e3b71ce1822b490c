// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/simt/executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <span>

#include "kernels/base/strings.h"
#include "tests/testing/simt/fiber.h"

namespace deeppcr::testing::simt {
namespace {

constexpr size_t kStackBytes = size_t{64} << 10;
constexpr int kNotWaiting = -1;
constexpr int kShuffleSite = -2;
constexpr int kCluster = 2;
constexpr int kBlocks = 3;    // the scope of those that wait for all blocks to have begun
constexpr int kElements = 4;  // the scope of those that wait for numbered elements
constexpr const char* kScopeNames[] = {"warp", "block", "cluster", "blocks", "elements"};

bool HaveNumber(const uint64_t* pair, uint32_t number) {
  return pair[0] >> 32 == number && pair[1] >> 32 == number;
}

struct AlignedDelete {
  void operator()(std::byte* bytes) const { ::operator delete[](bytes, std::align_val_t{16}); }
};
using SharedMemory = std::unique_ptr<std::byte[], AlignedDelete>;

// Shared memory of exactly `bytes` bytes, full of NaN.
SharedMemory NewShared(size_t bytes) {
  SharedMemory shared(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{16})));
  std::memset(shared.get(), 0xFF, bytes);
  return shared;
}

}  // namespace

// One cluster of a launch while it runs. Clusters run one after the other and know nothing of one
// another.
class Launch {
 public:
  Launch(const LaunchShape& shape, const Schedule& schedule, int cluster,
         const std::function<void(Thread&)>& body)
      : shape_(shape),
        schedule_(schedule),
        cluster_(cluster),
        random_(schedule.seed + static_cast<uint64_t>(cluster)),
        warps_(shape.num_blocks * shape.num_threads / kWarpSize),
        threads_(warps_ * kWarpSize),
        slots_(2 * threads_),
        operands_(2 * threads_),
        states_(threads_),
        late_(shape.num_blocks),
        ended_(shape.num_blocks),
        contexts_(threads_) {
    for (int b = 0; b < shape.num_blocks; ++b) shared_.push_back(NewShared(shape.shared_bytes));
    // In every other order drawn by lot: what all blocks do from the beginning is mixed in the
    // rest.
    if (schedule.order == Order::kShuffled && schedule.seed % 2 == 0) {
      std::mt19937_64 lots(schedule.seed);
      for (int b = 0; b < shape.num_blocks; ++b) late_[b] = lots() % 3 == 0;
    }
    std::byte* const stacks = Stacks(threads_);
    for (int t = 0; t < threads_; ++t) {
      Place(t);
      fibers_.push_back(
          std::make_unique<Fiber>(stacks + kStackBytes * t, kStackBytes,
                                  [this, t, &body] { RunThread(contexts_[t], body); }));
    }
  }

  Outcome Run() {
    std::vector<int> order(warps_);
    std::iota(order.begin(), order.end(), 0);
    if (schedule_.order == Order::kDescending) std::reverse(order.begin(), order.end());
    const bool shuffled = schedule_.order == Order::kShuffled;
    for (bool progress = true; progress;) {
      if (shuffled) std::shuffle(order.begin(), order.end(), random_);
      progress = Advance(order, shuffled) || Advance(order, false) || StartBlocks();
      if (!progress && !AllDone()) {
        Complain(StrCat("deadlock: ", Waiting()));
        progress = true;  // where they wait, all threads end
        for (State& state : states_) state.scope = kNotWaiting;
      }
      if (AllDone()) break;
    }
    ExpectNothingStoredAfterEnds();
    return std::move(outcome_);
  }

  std::byte* SharedOf(int block) { return shared_[block].get(); }
  size_t shared_bytes() const { return shape_.shared_bytes; }

  void Wait(const Thread& thread, int scope, int site) {
    if (site >= 0) {
      if (site >= static_cast<int>(outcome_.passes.size())) outcome_.passes.resize(site + 1);
      ++outcome_.passes[site];
    }
    // After a trouble a thread ends where it would wait: its loop may be over only when others of
    // the launch have come as far.
    if (!outcome_.trouble.empty()) throw EndOfThread();
    State& state = states_[thread.index_];
    if (scope == kCluster && state.announcement == Announcement::kMade)
      Complain("a barrier of the cluster between AnnounceBlock and AwaitBlocks");
    if (scope == kBlocks && state.announcement != Announcement::kMade)
      Complain("an AwaitBlocks without its AnnounceBlock");
    if (scope == kBlocks) state.announcement = Announcement::kAwaited;
    if (site == schedule_.disabled_site) return;
    // A warp goes on at once where it finds what it asks for: nobody else has to have come as far.
    if (scope == kElements && HaveNumber(state.pair, state.number)) return;
    state.scope = scope;
    state.site = site;
    fibers_[thread.index_]->Yield();
    if (!outcome_.trouble.empty()) throw EndOfThread();
  }

  void AwaitNumbered(const Thread& thread, const uint64_t* pair, uint32_t number, int site) {
    State& state = states_[thread.index_];
    state.pair = pair;
    state.number = number;
    Wait(thread, kElements, site);
  }

  void Announce(const Thread& thread) {
    Announcement& announcement = states_[thread.index_].announcement;
    if (announcement != Announcement::kNone) Complain("a second AnnounceBlock");
    announcement = Announcement::kMade;
    ++announced_;
  }

  // Alternates between two sets of slots: a lane that is ahead fills the other set.
  uint64_t Exchange(const Thread& thread, uint64_t bits, int source) {
    int& turn = states_[thread.index_].turn;
    turn ^= 1;
    uint64_t* slots = slots_.data() + 2 * (thread.index_ - thread.lane()) + turn * kWarpSize;
    slots[thread.lane()] = bits;
    Wait(thread, 0, kShuffleSite);
    return slots[source % kWarpSize];
  }

  // What all lanes of a warp bring, as Exchange.
  const Thread::TileOperands* Gather(const Thread& thread, const Thread::TileOperands& mine) {
    int& turn = states_[thread.index_].turn;
    turn ^= 1;
    Thread::TileOperands* all =
        operands_.data() + 2 * (thread.index_ - thread.lane()) + turn * kWarpSize;
    all[thread.lane()] = mine;
    Wait(thread, 0, kShuffleSite);
    return all;
  }

  void Complain(const std::string& trouble) {
    if (outcome_.trouble.empty()) outcome_.trouble = trouble;
  }

 private:
  struct EndOfThread {};
  static void RunThread(Thread& thread, const std::function<void(Thread&)>& body) {
    try {
      body(thread);
      if (!thread.copies_.empty()) thread.Complain("copies that a thread has not waited for");
    } catch (const EndOfThread&) {
    }
  }

  // How far a thread is between its AnnounceBlock and its AwaitBlocks.
  enum class Announcement { kNone, kMade, kAwaited };

  struct State {
    int scope = kNotWaiting;
    int site = 0;
    int turn = 0;
    Announcement announcement = Announcement::kNone;
    const uint64_t* pair = nullptr;  // what is to have the number, with scope kElements
    uint32_t number = 0;
  };

  // Stacks that stay from one launch to the next: fresh pages cost more than most kernels. One host
  // thread has one launch at a time.
  static std::byte* Stacks(int threads) {
    thread_local std::unique_ptr<std::byte[]> stacks;
    thread_local int count = 0;
    if (count < threads) stacks.reset(new std::byte[kStackBytes * threads]);
    count = std::max(count, threads);
    return stacks.get();
  }

  void Place(int t) {
    Thread& thread = contexts_[t];
    const int block = t / shape_.num_threads;
    thread.launch_ = this;
    thread.index_ = t;
    thread.thread_ = t % shape_.num_threads;
    thread.num_threads_ = shape_.num_threads;
    thread.block_ = block;
    thread.num_blocks_ = shape_.num_blocks;
    thread.cluster_ = cluster_;
    thread.num_clusters_ = shape_.num_clusters;
    thread.shared_ = shared_[block].get();
  }

  bool Ready(int t) const { return !fibers_[t]->done() && states_[t].scope == kNotWaiting; }

  // Runs a warp until all its lanes have ended or wait for something wider than the warp. False if
  // no lane could run.
  bool RunWarp(int warp) {
    bool ran = false;
    do {
      for (int i = 0; i < kWarpSize; ++i) {
        const bool down = schedule_.order == Order::kDescending;
        const int t = warp * kWarpSize + (down ? kWarpSize - 1 - i : i);
        if (!Ready(t)) continue;
        ran = true;
        fibers_[t]->Resume();
        if (fibers_[t]->done()) EndThread(contexts_[t].block_);
      }
    } while (Release(0, warp * kWarpSize, kWarpSize));
    return ran;
  }

  // Wipes the shared memory of a block when the last of its threads has ended.
  void EndThread(int block) {
    if (++ended_[block] == shape_.num_threads)
      std::memset(shared_[block].get(), 0xFF, shape_.shared_bytes);
  }

  // A store in the memory of a block that has ended may be one in another launch's on a GPU.
  void ExpectNothingStoredAfterEnds() {
    for (const SharedMemory& shared : shared_) {
      const std::byte* const bytes = shared.get();
      if (shape_.shared_bytes == 0) continue;
      if (bytes[0] != std::byte{0xFF} ||
          std::memcmp(bytes, bytes + 1, shape_.shared_bytes - 1) != 0)
        return Complain("a store in the shared memory of a block that has ended");
    }
  }

  // Runs warps and lets those pass whose barrier is complete: all of them, or, where some may stay
  // behind, some: a warp may be far behind another one that it has no barrier with.
  bool Advance(const std::vector<int>& order, bool some_stay) {
    bool progress = false;
    for (const int warp : order) {
      const int block = warp * kWarpSize / shape_.num_threads;
      if (late_[block]) continue;
      if (some_stay && random_() % 4 == 0) continue;
      progress = RunWarp(warp) || progress;
    }
    for (int scope = 2; scope > 0; --scope) progress = ReleaseAll(scope, some_stay) || progress;
    progress = ReleaseReaders(some_stay) || progress;
    return ReleaseBlocks() || progress;
  }

  // Lets those pass whose elements have come, or some of them.
  bool ReleaseReaders(bool some_stay) {
    bool released = false;
    for (State& state : states_) {
      if (state.scope != kElements || !HaveNumber(state.pair, state.number)) continue;
      if (some_stay && random_() % 2 != 0) continue;
      state.scope = kNotWaiting;
      released = true;
    }
    return released;
  }

  // Lets those pass that wait for all blocks to have begun, once they have.
  bool ReleaseBlocks() {
    bool released = false;
    for (State& state : states_) {
      if (announced_ < threads_ || state.scope != kBlocks) continue;
      state.scope = kNotWaiting;
      released = true;
    }
    return released;
  }

  // Begins the blocks that begin late, when nobody else can go on: their memory is as new. False if
  // there is none.
  bool StartBlocks() {
    bool starts = false;
    for (int b = 0; b < shape_.num_blocks; ++b) {
      if (!late_[b]) continue;
      std::memset(shared_[b].get(), 0xFF, shape_.shared_bytes);
      late_[b] = false;
      starts = true;
    }
    return starts;
  }

  bool ReleaseAll(int scope, bool some_stay) {
    const int size = scope == 1 ? shape_.num_threads : shape_.num_threads * shape_.num_blocks;
    bool released = false;
    for (int first = 0; first < threads_; first += size) {
      if (some_stay && random_() % 2 != 0) continue;
      released = Release(scope, first, size) || released;
    }
    return released;
  }

  // Lets `size` threads pass if all of them wait at the same barrier.
  bool Release(int scope, int first, int size) {
    const std::span<State> all = std::span(states_).subspan(first, size);
    const int site = all[0].site;
    const auto waits = [&](const State& s) { return s.scope == scope; };
    if (!std::all_of(all.begin(), all.end(), waits)) return false;
    const auto elsewhere = [&](const State& s) { return s.site != site; };
    const auto other = std::find_if(all.begin(), all.end(), elsewhere);
    if (other != all.end())
      Complain(StrCat("threads of a ", kScopeNames[scope], " wait at sites ", site, " and ",
                      other->site));
    for (State& state : all) state.scope = kNotWaiting;
    return true;
  }

  bool AllDone() const {
    return std::all_of(fibers_.begin(), fibers_.end(), [](const auto& f) { return f->done(); });
  }

  std::string Waiting() const {
    for (int t = 0; t < threads_; ++t) {
      if (states_[t].scope == kNotWaiting) continue;
      return StrCat("thread ", t, " waits for its ", kScopeNames[states_[t].scope], " at site ",
                    states_[t].site);
    }
    return "nobody waits";
  }

  const LaunchShape shape_;
  const Schedule schedule_;
  const int cluster_;
  std::mt19937_64 random_;
  const int warps_, threads_;
  std::vector<uint64_t> slots_;
  std::vector<Thread::TileOperands> operands_;
  std::vector<State> states_;
  int announced_ = 0;       // threads that have come to their AnnounceBlock
  std::vector<bool> late_;  // blocks that have not begun
  std::vector<int> ended_;  // number of ended threads, by block
  std::vector<Thread> contexts_;
  std::vector<SharedMemory> shared_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  Outcome outcome_;
};

std::byte* Thread::SharedOf(int block) const { return launch_->SharedOf(block); }
void Thread::Complain(const std::string& trouble) const { launch_->Complain(trouble); }
void Thread::AnnounceBlock() { launch_->Announce(*this); }
void Thread::Wait(int scope, int site) { launch_->Wait(*this, scope, site); }
bool Thread::IsShared(const float* at) const {
  const auto address = reinterpret_cast<uintptr_t>(at);
  const auto begin = reinterpret_cast<uintptr_t>(shared_);
  return address >= begin && address < begin + launch_->shared_bytes();
}
void Thread::StoreNumbered(uint64_t* to, float value, uint32_t number) const {
  if (reinterpret_cast<uintptr_t>(to) % 8 != 0) return Complain("an address that is not aligned");
  if (number == 0) return Complain("an element with the number of those that nobody has written");
  *to = uint64_t{number} << 32 | ToBits(value);
}
void Thread::AwaitNumbered(const uint64_t* from, uint32_t number, float (&to)[2], int site) {
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0)
    Complain("a load whose address is no multiple of its bytes");
  launch_->AwaitNumbered(*this, from, number, site);
  for (int i = 0; i < 2; ++i) to[i] = FromBits<float>(from[i]);
}
uint64_t Thread::Exchange(uint64_t bits, int source) {
  return launch_->Exchange(*this, bits, source);
}

// Every NaN is 0x7FFFFFFF, as a GPU's arithmetic makes it.
float Thread::RoundToTf32(float x) {
  if (x != x) x = __builtin_bit_cast(float, 0x7FFFFFFFU);
  return __builtin_bit_cast(float, (__builtin_bit_cast(uint32_t, x) + 0x1000U) & 0xFFFFE000U);
}
float Thread::CutToTf32(float x) {
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, x) & 0xFFFFE000U);
}

namespace {

float TowardsZero(double x) {
  const auto nearest = static_cast<float>(x);
  return std::isfinite(nearest) && std::fabs(nearest) > std::fabs(x) ? std::nextafter(nearest, 0.0F)
                                                                     : nearest;
}

}  // namespace

void Thread::AddProduct(const float (&a)[4], const float (&b)[2], float (&d)[4]) {
  const auto is_tf32 = [](float x) { return __builtin_bit_cast(uint32_t, x) % 0x2000 == 0; };
  if (!std::all_of(a, a + 4, is_tf32) || !std::all_of(b, b + 2, is_tf32))
    Complain("a factor that is no TF32 number");
  const TileOperands* lanes = launch_->Gather(*this, {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}});
  const int g = lane() / 4, t = lane() % 4;
  for (int i = 0; i < 4; ++i) {
    const int below = i / 2, col = 2 * t + i % 2;
    double sum = d[i];
    for (int k = 0; k < 8; ++k)
      sum += double{lanes[4 * g + k % 4].a[below + 2 * (k / 4)]} * lanes[4 * col + k % 4].b[k / 4];
    d[i] = TowardsZero(sum);
  }
}

uint16_t Thread::ToHalf(float x) {
  if (x != x) return 0x7FFF;
  // By search: another way than that of device_halves.cc, which packs weights.
  const auto sign = static_cast<uint16_t>(std::signbit(x) ? 0x8000 : 0);
  const double size = std::fabs(double{x});
  if (size >= 65520) return sign | 0x7C00;
  uint16_t low = 0, high = 0x7C00;  // OfHalf(low) <= size < OfHalf(high)
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (OfHalf(middle) <= size ? low : high) = middle;
  }
  const double next = high == 0x7C00 ? 65536 : OfHalf(high);
  const double below = size - OfHalf(low), above = next - size;
  return sign | (below < above || (below == above && low % 2 == 0) ? low : high);
}
float Thread::OfHalf(uint16_t half) {
  const int exponent = half >> 10 & 0x1F, digits = half & 0x3FF;
  const float sign = half >> 15 != 0 ? -1.0F : 1.0F;
  if (exponent == 0x1F) return digits == 0 ? sign * INFINITY : NAN;
  return sign * (exponent == 0 ? std::ldexp(static_cast<float>(digits), -24)
                               : std::ldexp(static_cast<float>(1024 + digits), exponent - 25));
}

void Thread::AddHalfProduct(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&d)[4]) {
  const auto word = [](uint32_t bits) { return __builtin_bit_cast(float, bits); };
  const TileOperands* lanes = launch_->Gather(
      *this, {{word(a[0]), word(a[1]), word(a[2]), word(a[3])}, {word(b[0]), word(b[1])}});
  const auto half = [](float pair, int k) {
    return double{
        OfHalf(static_cast<uint16_t>(__builtin_bit_cast(uint32_t, pair) >> 16 * (k % 2)))};
  };
  const int g = lane() / 4, t = lane() % 4;
  for (int i = 0; i < 4; ++i) {
    const int below = i / 2, col = 2 * t + i % 2;
    double sum = d[i];
    for (int k = 0; k < 16; ++k) {
      const int pair = k / 2;
      sum += half(lanes[4 * g + pair % 4].a[below + 2 * (pair / 4)], k) *
             half(lanes[4 * col + pair % 4].b[pair / 4], k);
    }
    d[i] = TowardsZero(sum);
  }
}

Outcome Execute(const LaunchShape& shape, const Schedule& schedule,
                const std::function<void(Thread&)>& body) {
  std::vector<int> order(shape.num_clusters);
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(schedule.seed);
  if (schedule.order == Order::kDescending) std::reverse(order.begin(), order.end());
  if (schedule.order == Order::kShuffled) std::shuffle(order.begin(), order.end(), random);
  Outcome all;
  for (const int cluster : order) {
    const Outcome one = Launch(shape, schedule, cluster, body).Run();
    all.passes.resize(std::max(all.passes.size(), one.passes.size()));
    for (size_t site = 0; site < one.passes.size(); ++site) all.passes[site] += one.passes[site];
    all.trouble = one.trouble;
    if (!all.trouble.empty()) break;
  }
  return all;
}

}  // namespace deeppcr::testing::simt
