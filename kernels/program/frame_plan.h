// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_KERNELS_PROGRAM_FRAME_PLAN_H_
#define DEEPPCR_KERNELS_PROGRAM_FRAME_PLAN_H_

#include <cstdint>
#include <map>

namespace deeppcr::program {

// Blocks of a frame: a block is free again once its value has been read for the last time.
class FramePlan {
 public:
  int64_t Take(int64_t width) {
    auto found = free_.lower_bound(width);
    // A block of twice the width is worth more to others.
    if (found != free_.end() && found->first <= 2 * width) {
      const Block block = found->second;
      free_.erase(found);
      taken_[block.offset] = block;
      return block.offset;
    }
    const Block block = {floats_, width};
    floats_ += width;
    taken_[block.offset] = block;
    return block.offset;
  }
  void Free(int64_t offset) {
    const auto found = taken_.find(offset);
    free_.emplace(found->second.width, found->second);
    taken_.erase(found);
  }
  int64_t floats() const { return floats_; }

 private:
  struct Block {
    int64_t offset, width;
  };
  std::multimap<int64_t, Block> free_;
  std::map<int64_t, Block> taken_;
  int64_t floats_ = 0;
};

}  // namespace deeppcr::program

#endif  // DEEPPCR_KERNELS_PROGRAM_FRAME_PLAN_H_
