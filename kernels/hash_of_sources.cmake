# SPDX-License-Identifier: Apache-2.0
# hash_of_sources(LISTING ROOT HEAD RESULT): the SHA-256 of HEAD and of the names and bytes of the
# sources that the file LISTING names, one path per line, counted from ROOT: the same sources give
# the same hash wherever they lie.
function(hash_of_sources listing root head result)
  file(STRINGS ${listing} paths)
  list(SORT paths)
  set(text "${head}")
  foreach(path IN LISTS paths)
    file(SHA256 ${root}/${path} hash)
    string(APPEND text "${path} ${hash}\n")
  endforeach()
  string(SHA256 hash "${text}")
  set(${result} ${hash} PARENT_SCOPE)
endfunction()
