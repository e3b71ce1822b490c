# SPDX-License-Identifier: Apache-2.0
# Gives a tree that knows nothing of it the program engine_turns: CMAKE_PROJECT_INCLUDE of
# measure_against.py's build of an older commit.
if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR)
  set(engine_turns_source ${CMAKE_CURRENT_LIST_DIR}/engine_turns.cc)
  cmake_language(DEFER CALL add_executable engine_turns ${engine_turns_source})
  cmake_language(DEFER CALL target_link_libraries engine_turns PRIVATE deeppcr_engine)
  cmake_language(DEFER CALL target_compile_options engine_turns PRIVATE -w)
endif()
