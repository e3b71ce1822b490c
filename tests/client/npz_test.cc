// SPDX-License-Identifier: Apache-2.0
#include "client/npz.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "client/npy.h"

namespace deeppcr {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Little(uint32_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  return text;
}

std::string Deflated(const std::string& data) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, data.size()), '\0');
  std::string copy = data;
  stream.next_in = reinterpret_cast<Bytef*>(copy.data());
  stream.avail_in = static_cast<uInt>(copy.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

// A member as an archive holds it; tests change what it claims.
struct Member {
  Member(std::string name_, const std::string& data, bool deflate)
      : name(std::move(name_)),
        packed(deflate ? Deflated(data) : data),
        method(deflate ? 8 : 0),
        size(static_cast<uint32_t>(data.size())),
        packed_size(static_cast<uint32_t>(packed.size())),
        checksum(static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(data.data()),
                                             static_cast<uInt>(data.size())))) {}
  std::string name, packed;
  uint32_t method, size, packed_size, checksum, flags = 0;
};

std::string Archive(const std::vector<Member>& members, const std::string& comment = "") {
  std::string bytes, directory;
  for (const Member& m : members) {
    const auto offset = static_cast<uint32_t>(bytes.size());
    const std::string common = Little(m.flags, 2) + Little(m.method, 2) + Little(0, 4) +
                               Little(m.checksum, 4) + Little(m.packed_size, 4) +
                               Little(m.size, 4) + Little(static_cast<uint32_t>(m.name.size()), 2);
    // NumPy's records have 20 bytes of extra fields, the directory has none.
    bytes += "PK\x03\x04" + Little(45, 2) + common + Little(20, 2) + m.name +
             std::string(20, '\0') + m.packed;
    directory += "PK\x01\x02" + Little(45, 2) + Little(45, 2) + common + Little(0, 2) +
                 Little(0, 2) + Little(0, 2) + Little(0, 2) + Little(0, 4) + Little(offset, 4) +
                 m.name;
  }
  const auto count = static_cast<uint32_t>(members.size());
  return bytes + directory + "PK\x05\x06" + Little(0, 4) + Little(count, 2) + Little(count, 2) +
         Little(static_cast<uint32_t>(directory.size()), 4) +
         Little(static_cast<uint32_t>(bytes.size()), 4) +
         Little(static_cast<uint32_t>(comment.size()), 2) + comment;
}

std::string Inputs() { return FormatNpy(Array{{2, 2}, {1, 2, 3, 4}}); }
std::string Labels() { return FormatNpy(std::vector<int64_t>{0, 9}); }

std::string ErrorOf(std::string_view bytes) {
  const auto arrays = ParseNpz(bytes);
  if (arrays.ok()) return "accepted";
  EXPECT_EQ(arrays.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(arrays.status().message());
}
std::string ErrorOf(const Member& member) { return ErrorOf(Archive({member})); }

TEST(NpzTest, ReadsStoredAndDeflatedArraysByName) {
  for (const bool deflate : {false, true}) {
    const auto arrays = ParseNpz(Archive(
        {{"inputs.npy", Inputs(), deflate}, {"labels.npy", Labels(), !deflate}}, "a comment"));
    ASSERT_TRUE(arrays.ok()) << arrays.status();
    ASSERT_EQ(arrays->size(), 2);
    EXPECT_THAT(arrays->at("inputs").shape, ElementsAre(2, 2));
    EXPECT_THAT(arrays->at("inputs").values, ElementsAre(1, 2, 3, 4));
    EXPECT_THAT(arrays->at("labels").values, ElementsAre(0, 9));
  }
  EXPECT_TRUE(ParseNpz(Archive({}))->empty());
}

TEST(NpzTest, ReadsOnlyWhatIsWanted) {
  Member names("names.npy", "no array of numbers", true);
  names.checksum ^= 1;
  const std::string bytes = Archive({{"inputs.npy", Inputs(), true}, names, names});
  EXPECT_NE(ErrorOf(bytes), "accepted");
  const std::string_view inputs[] = {"inputs"}, both[] = {"inputs", "labels"};
  const auto arrays = ParseNpz(bytes, inputs);
  ASSERT_TRUE(arrays.ok()) << arrays.status();
  ASSERT_EQ(arrays->size(), 1);
  EXPECT_THAT(arrays->at("inputs").values, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(ParseNpz(bytes, both).status().message(),
            "npz: expected an array named labels, got \"inputs\", \"names\", \"names\"");
  EXPECT_EQ(ParseNpz(Archive({}), inputs).status().message(),
            "npz: expected an array named inputs, got none");
  const std::string twice =
      Archive({{"inputs.npy", Inputs(), true}, {"inputs.npy", Inputs(), true}});
  EXPECT_THAT(std::string(ParseNpz(twice, inputs).status().message()), HasSubstr("came twice"));
}

TEST(NpzTest, RefusesEveryArchiveThatIsCutShort) {
  const std::string bytes = Archive({{"inputs.npy", Inputs(), true}, {"l.npy", Labels(), false}});
  for (size_t size = 0; size < bytes.size(); ++size)
    ASSERT_NE(ErrorOf(std::string_view(bytes).substr(0, size)), "accepted") << size;
}

// A changed byte is found, or changes what nothing hangs on: times, versions, attributes.
TEST(NpzTest, NeverReadsOtherNumbersFromAChangedByte) {
  const std::string bytes = Archive({{"inputs.npy", Inputs(), true}});
  int found = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const int flip : {0x01, 0x10, 0x80}) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ flip);
      const auto arrays = ParseNpz(changed);
      found += arrays.ok() ? 0 : 1;
      if (!arrays.ok() || arrays->empty() || !arrays->contains("inputs")) continue;
      ASSERT_THAT(arrays->at("inputs").values, ElementsAre(1, 2, 3, 4)) << at;
    }
  }
  EXPECT_GT(found, 250);
}

TEST(NpzTest, RefusesWhatItCannotReadNamingTheMember) {
  Member member("x.npy", Inputs(), true);
  EXPECT_EQ(ErrorOf(member), "accepted");
  member.method = 14;
  EXPECT_THAT(ErrorOf(member), HasSubstr("member \"x.npy\": npz: compression: expected stored or "
                                         "deflated (0 or 8), got 14"));
  member = Member("x.npy", Inputs(), true);
  member.flags = 1;
  EXPECT_THAT(ErrorOf(member), HasSubstr("encryption"));
  member = Member("x.npy", Inputs(), true);
  member.checksum ^= 1;
  EXPECT_THAT(ErrorOf(member), HasSubstr("checksum"));
  member = Member("x.npy", Inputs(), true);
  member.size = 0xFFFFFFFF;
  EXPECT_THAT(ErrorOf(member), HasSubstr("at most"));
  member = Member("x.npy", Inputs(), false);
  member.packed_size -= 1;
  EXPECT_THAT(ErrorOf(member), HasSubstr("stored in"));
  EXPECT_THAT(ErrorOf(Member("x.npy", "no array", true)), HasSubstr("\"x.npy\": npy: not a .npy"));
  EXPECT_THAT(ErrorOf(Member("x.txt", Inputs(), true)), HasSubstr("ends in .npy"));
  EXPECT_THAT(ErrorOf(Archive({{"x.npy", Inputs(), true}, {"x.npy", Inputs(), true}})),
              HasSubstr("came twice"));
  EXPECT_THAT(ErrorOf("PK"), HasSubstr("not a .npz file"));
  EXPECT_THAT(ErrorOf(Archive(std::vector<Member>(65, member))),
              HasSubstr("expected at most 64 arrays, got 65"));
}

// What inflates to a thousand times its size must not be asked for before it is there, nor go on
// behind the size that it claims.
TEST(NpzTest, StopsWhereDataInflatesToMoreThanItsSize) {
  Member bomb("x.npy", std::string(100 << 20, '\0'), true);
  bomb.size = 64;
  EXPECT_THAT(ErrorOf(bomb), HasSubstr("inflates to more than its 64 bytes"));
  bomb.size = 900 << 20;
  EXPECT_THAT(ErrorOf(bomb), HasSubstr("expected 943718400 bytes"));
}

}  // namespace
}  // namespace deeppcr
