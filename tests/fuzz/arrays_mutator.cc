// SPDX-License-Identifier: Apache-2.0
// Mutates a .npy file, or wraps what came of it into an archive whose checksum holds: blind
// mutation of an archive breaks that first, and never gets to the array.

#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

constexpr size_t kLocalBytes = 30;

void Put(uint64_t value, int bytes, std::string* to) {
  for (int i = 0; i < bytes; ++i) to->push_back(static_cast<char>(value >> (8 * i) & 0xFF));
}

std::string Deflated(const std::string& bytes) {
  z_stream stream = {};
  deflateInit2(&stream, 6, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string packed(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

// One member, written as np.savez does.
std::string Archive(const std::string& member, bool deflates) {
  const std::string name = "inputs.npy", packed = deflates ? Deflated(member) : member;
  const uLong checksum = crc32_z(0, reinterpret_cast<const Bytef*>(member.data()), member.size());
  std::string shared;  // of both records: version, flags, method, time, checksum, sizes
  for (const uint64_t word : {20, 0, deflates ? 8 : 0, 0, 0}) Put(word, 2, &shared);
  Put(checksum, 4, &shared);
  Put(packed.size(), 4, &shared);
  Put(member.size(), 4, &shared);
  Put(name.size(), 2, &shared);
  Put(0, 2, &shared);
  std::string file = "PK\x03\x04" + shared + name + packed;
  const size_t directory = file.size();
  file += "PK\x01\x02";
  Put(20, 2, &file);
  file += shared + std::string(14, '\0') + name;
  const size_t size = file.size() - directory;
  file += "PK\x05\x06" + std::string(4, '\0');
  Put(1, 2, &file);
  Put(1, 2, &file);
  Put(size, 4, &file);
  Put(directory, 4, &file);
  Put(0, 2, &file);
  return file;
}

// The .npy file of the first stored member, or the bytes themselves.
std::string Inside(const std::string& file) {
  if (file.size() < kLocalBytes || file.compare(0, 4, "PK\x03\x04") != 0) return file;
  const size_t magic = file.find("\x93NUMPY"), end = file.find("PK\x01\x02");
  return magic < end && end != file.npos ? file.substr(magic, end - magic) : file;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  std::minstd_rand random(seed);
  const auto choice = random() % 4;
  if (choice == 0) return LLVMFuzzerMutate(data, size, max_size);
  std::string member = Inside({reinterpret_cast<const char*>(data), size});
  const size_t before = member.size();
  member.resize(max_size);
  member.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(member.data()),
                                 std::min(before, max_size), max_size));
  if (choice > 1) {
    const std::string archive = Archive(member, choice == 3);
    if (archive.size() <= max_size) member = archive;
  }
  std::memcpy(data, member.data(), member.size());
  return member.size();
}
