// SPDX-License-Identifier: Apache-2.0
#include "kernels/base/sha256.h"

#include <gtest/gtest.h>

namespace deeppcr {
namespace {

// The examples of FIPS 180-4 and of NIST's SHA test vectors (empty message, one block, two blocks).
TEST(Sha256Test, AgreesWithPublishedDigests) {
  EXPECT_EQ(*Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(*Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(*Sha256Hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

TEST(Sha256Test, TakesEveryByte) {
  EXPECT_NE(*Sha256Hex(std::string("a\0b", 3)), *Sha256Hex(std::string("a\0c", 3)));
}

}  // namespace
}  // namespace deeppcr
