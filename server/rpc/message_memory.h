// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_SERVER_RPC_MESSAGE_MEMORY_H_
#define DEEPPCR_SERVER_RPC_MESSAGE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "google/protobuf/arena.h"

namespace deeppcr {

// The memory of a call's messages: an arena whose first block lies in this object, so that small
// messages take none from elsewhere. Tensors' data is not in it: strings have their own.
class MessageMemory {
 public:
  MessageMemory() = default;
  MessageMemory(const MessageMemory&) = delete;
  MessageMemory& operator=(const MessageMemory&) = delete;

  // The arena, which lives until Free. An arena gives its first block to the thread that made it:
  // the thread that asks for it first is to be the one that makes the messages.
  google::protobuf::Arena* arena() {
    if (!arena_.has_value()) arena_.emplace(block_, sizeof(block_));
    return &*arena_;
  }
  int64_t bytes() const { return arena_ ? static_cast<int64_t>(arena_->SpaceAllocated()) : 0; }
  // Ends the messages.
  void Free() { arena_.reset(); }

 private:
  // Enough for a Forward of one sample, or its reply, with a third to spare.
  static constexpr size_t kBlockBytes = 1536;

  alignas(std::max_align_t) char block_[kBlockBytes];
  std::optional<google::protobuf::Arena> arena_;
};

}  // namespace deeppcr

#endif  // DEEPPCR_SERVER_RPC_MESSAGE_MEMORY_H_
