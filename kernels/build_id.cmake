# SPDX-License-Identifier: Apache-2.0
# cmake -D SOURCES=<file with one path per line> -D ROOT=<their common folder> -D VERSION=...
#       -D FLAGS=... -D OUTPUT=<file> -P build_id.cmake
# Writes kBuildId of build_id.h: VERSION+HASH. Run by the build when a source has changed. Paths
# count from ROOT, so that the same sources are the same build wherever they lie.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/hash_of_sources.cmake)
hash_of_sources(${SOURCES} ${ROOT} "${FLAGS}\n" hash)
string(SUBSTRING ${hash} 0 16 hash)
file(WRITE ${OUTPUT}
"// SPDX-License-Identifier: Apache-2.0
// Made by kernels/build_id.cmake.
#include \"kernels/build_id.h\"

namespace deeppcr {

const char kBuildId[] = \"${VERSION}+${hash}\";

}  // namespace deeppcr
")
