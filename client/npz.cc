// SPDX-License-Identifier: Apache-2.0
#include "client/npz.h"

#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "client/npy.h"
#include "kernels/base/status_context.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/strings.h"

namespace deeppcr {
namespace {

// Records of a zip archive: APPNOTE.TXT, 4.3.
constexpr uint32_t kEndSignature = 0x06054b50, kEntrySignature = 0x02014b50,
                   kLocalSignature = 0x04034b50;
constexpr size_t kEndBytes = 22, kEntryBytes = 46, kLocalBytes = 30;
constexpr size_t kMaxCommentBytes = 0xFFFF;
constexpr int64_t kMostArrays = 64;
constexpr uint16_t kStored = 0, kDeflated = 8;
constexpr uint32_t kInZip64 = 0xFFFFFFFF;

absl::Status ArchiveError(const std::string& message) { return InvalidArgument("npz: ", message); }

// Preconditions of both: the bytes are there.
uint16_t Word(std::string_view bytes, size_t at) {
  return static_cast<uint16_t>(static_cast<unsigned char>(bytes[at]) |
                               static_cast<unsigned char>(bytes[at + 1]) << 8);
}
uint32_t DoubleWord(std::string_view bytes, size_t at) {
  return Word(bytes, at) | uint32_t{Word(bytes, at + 2)} << 16;
}

struct Entry {
  std::string name;
  uint16_t flags, method;
  uint32_t checksum, packed_size, size, local_offset;
};

// The record that ends the archive, with a comment behind it that may be of any text.
absl::StatusOr<std::string_view> FindEnd(std::string_view bytes) {
  if (bytes.size() >= kEndBytes) {
    const size_t last = bytes.size() - kEndBytes;
    for (size_t back = 0; back <= std::min(last, kMaxCommentBytes); ++back) {
      const std::string_view end = bytes.substr(last - back);
      if (DoubleWord(end, 0) == kEndSignature && Word(end, 20) == back) return end;
    }
  }
  return ArchiveError("not a .npz file: expected a zip archive, whole to its end");
}

absl::StatusOr<Entry> ParseEntry(std::string_view* directory) {
  if (directory->size() < kEntryBytes || DoubleWord(*directory, 0) != kEntrySignature)
    return ArchiveError("directory: expected another entry");
  const std::string_view record = *directory;
  const size_t name_size = Word(record, 28);
  const size_t size = kEntryBytes + name_size + Word(record, 30) + Word(record, 32);
  if (size > record.size()) return ArchiveError("directory: it ends within an entry");
  Entry entry = {.name = std::string(record.substr(kEntryBytes, name_size)),
                 .flags = Word(record, 8),
                 .method = Word(record, 10),
                 .checksum = DoubleWord(record, 16),
                 .packed_size = DoubleWord(record, 20),
                 .size = DoubleWord(record, 24),
                 .local_offset = DoubleWord(record, 42)};
  directory->remove_prefix(size);
  return entry;
}

absl::StatusOr<std::vector<Entry>> ParseDirectory(std::string_view bytes) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::string_view end, FindEnd(bytes));
  const int64_t count = Word(end, 10);
  const size_t size = DoubleWord(end, 12), offset = DoubleWord(end, 16);
  const auto before_end = static_cast<size_t>(end.data() - bytes.data());
  if (count > kMostArrays)
    return ArchiveError(StrCat("expected at most ", kMostArrays, " arrays, got ", count));
  if (Word(end, 4) != 0 || Word(end, 8) != count || offset > before_end ||
      size > before_end - offset)
    return ArchiveError(StrCat("directory: expected ", size, " bytes at offset ", offset,
                               " in one file, before its end at ", before_end));
  std::string_view directory = bytes.substr(offset, size);
  std::vector<Entry> entries;
  for (int64_t i = 0; i < count; ++i) {
    DEEPPCR_ASSIGN_OR_RETURN(Entry entry, ParseEntry(&directory));
    entries.push_back(std::move(entry));
  }
  return entries;
}

absl::Status CheckEntry(const Entry& entry) {
  constexpr uint16_t kEncrypted = 1;
  if ((entry.flags & kEncrypted) != 0) return ArchiveError("expected no encryption");
  if (entry.method != kStored && entry.method != kDeflated)
    return ArchiveError(
        StrCat("compression: expected stored or deflated (0 or 8), got ", entry.method));
  if (entry.size == kInZip64 || entry.packed_size == kInZip64 || entry.local_offset == kInZip64)
    return ArchiveError("expected less than 4 GiB, got zip64");
  if (entry.method == kStored && entry.size != entry.packed_size)
    return ArchiveError(
        StrCat("stored in ", entry.packed_size, " bytes, expected its ", entry.size));
  return absl::OkStatus();
}

// The bytes of an entry as they lie in the file.
absl::StatusOr<std::string_view> PackedBytes(std::string_view bytes, const Entry& entry) {
  const size_t at = entry.local_offset;
  if (at > bytes.size() || bytes.size() - at < kLocalBytes ||
      DoubleWord(bytes, at) != kLocalSignature)
    return ArchiveError(StrCat("expected its record at offset ", at));
  const size_t data = at + kLocalBytes + Word(bytes, at + 26) + Word(bytes, at + 28);
  if (data > bytes.size() || bytes.size() - data < entry.packed_size)
    return ArchiveError(StrCat("expected ", entry.packed_size, " bytes at offset ", data,
                               ", the file has ", bytes.size()));
  return bytes.substr(data, entry.packed_size);
}

// Raw deflate to exactly `size` bytes: memory is asked for as it is filled, as the size is a claim.
absl::StatusOr<std::string> Inflate(std::string_view packed, size_t size) {
  z_stream stream = {};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return Internal("npz: zlib cannot begin");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  std::string bytes;
  int result = Z_OK;
  char block[1 << 16];
  while (result == Z_OK && bytes.size() <= size) {
    stream.next_out = reinterpret_cast<Bytef*>(block);
    stream.avail_out = sizeof(block);
    result = inflate(&stream, Z_NO_FLUSH);
    bytes.append(block, sizeof(block) - stream.avail_out);
  }
  inflateEnd(&stream);
  if (result == Z_STREAM_END && bytes.size() == size) return bytes;
  if (bytes.size() > size)
    return ArchiveError(StrCat("inflates to more than its ", size, " bytes"));
  return ArchiveError(
      StrCat("expected ", size, " bytes of deflated data, it ends or errs after ", bytes.size()));
}

absl::StatusOr<Array> ParseArray(std::string_view file, const Entry& entry) {
  DEEPPCR_RETURN_IF_ERROR(CheckEntry(entry));
  DEEPPCR_ASSIGN_OR_RETURN(const std::string_view packed, PackedBytes(file, entry));
  std::string inflated;
  std::string_view bytes = packed;
  if (entry.method == kDeflated) {
    DEEPPCR_ASSIGN_OR_RETURN(inflated, Inflate(packed, entry.size));
    bytes = inflated;
  }
  const uLong checksum = crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  if (checksum != entry.checksum) return ArchiveError("its checksum does not hold");
  return ParseNpy(bytes);
}

// The names of the arrays, without the extension of their members.
absl::StatusOr<std::vector<std::string>> NamesOf(const std::vector<Entry>& entries) {
  constexpr std::string_view kExtension = ".npy";
  std::vector<std::string> names;
  for (const Entry& entry : entries) {
    if (!entry.name.ends_with(kExtension))
      return ArchiveError(
          StrCat("member ", Quoted(entry.name), ": expected a name that ends in .npy"));
    names.push_back(entry.name.substr(0, entry.name.size() - kExtension.size()));
  }
  return names;
}

absl::Status CheckThere(std::string_view name, const std::vector<std::string>& names) {
  if (std::ranges::find(names, name) != names.end()) return absl::OkStatus();
  const std::string there = StrJoin(names, ", ", [](const auto& each) { return Quoted(each); });
  return ArchiveError(
      StrCat("expected an array named ", name, ", got ", there.empty() ? "none" : there));
}

}  // namespace

absl::StatusOr<std::map<std::string, Array>> ParseNpz(std::string_view bytes,
                                                      std::span<const std::string_view> wanted) {
  DEEPPCR_ASSIGN_OR_RETURN(const std::vector<Entry> entries, ParseDirectory(bytes));
  DEEPPCR_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesOf(entries));
  for (const std::string_view name : wanted) DEEPPCR_RETURN_IF_ERROR(CheckThere(name, names));
  int64_t total = 0;
  std::map<std::string, Array> arrays;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!wanted.empty() && std::ranges::find(wanted, names[i]) == wanted.end()) continue;
    total += entries[i].size;
    if (total > kMaxArrayBytes)
      return ArchiveError(StrCat("expected at most ", kMaxArrayBytes, " bytes of arrays"));
    absl::StatusOr<Array> array = ParseArray(bytes, entries[i]);
    if (!array.ok()) return WithContext(array.status(), StrCat("member ", Quoted(entries[i].name)));
    if (!arrays.emplace(names[i], *std::move(array)).second)
      return ArchiveError(StrCat("member ", Quoted(entries[i].name), " came twice"));
  }
  return arrays;
}

}  // namespace deeppcr
