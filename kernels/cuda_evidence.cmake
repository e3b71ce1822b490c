# SPDX-License-Identifier: Apache-2.0
# cmake -D SOURCES=<file with one path per line> -D ROOT=<their common folder> -D NVCC=<version>
#       -D RESULTS=<folder of result files> -D OUTPUT=<file> -D KEY=<file> -P cuda_evidence.cmake
# Writes kCudaEvidence of backend/cuda_evidence.h: the committed results of tests/gpu that are of
# these very CUDA sources, compiled by this major.minor of nvcc, and in which nothing failed; empty
# if there are none. KEY receives what results have to name: the hash of the sources and the nvcc.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/hash_of_sources.cmake)
hash_of_sources(${SOURCES} ${ROOT} "" hash)
string(REGEX MATCH "^[0-9]+\\.[0-9]+" nvcc "${NVCC}")
file(WRITE ${KEY} "${hash} ${nvcc}\n")

set(evidence "")
file(GLOB files ${RESULTS}/*/*.json)
foreach(file IN LISTS files)
  file(READ ${file} json)
  string(JSON sources ERROR_VARIABLE no_sources GET "${json}" cuda_sources)
  string(JSON compiler ERROR_VARIABLE no_compiler GET "${json}" nvcc)
  string(JSON failed ERROR_VARIABLE no_failed LENGTH "${json}" failed)
  string(JSON tested ERROR_VARIABLE no_tested GET "${json}" tests_passed)
  if(nvcc AND sources STREQUAL hash AND compiler STREQUAL nvcc AND no_failed STREQUAL "NOTFOUND"
     AND failed EQUAL 0 AND tested STREQUAL "ON")
    file(RELATIVE_PATH evidence ${RESULTS} ${file})
  endif()
endforeach()
file(WRITE ${OUTPUT}
"// SPDX-License-Identifier: Apache-2.0
// Made by kernels/cuda_evidence.cmake.
#include \"kernels/backend/cuda_evidence.h\"

namespace deeppcr {

const char kCudaEvidence[] = \"${evidence}\";

}  // namespace deeppcr
")
