# SPDX-License-Identifier: Apache-2.0
# Tests whose libraries, all the way down, are not gRPC: ThreadSanitizer runs those. Debian's gRPC is
# not instrumented, and would be reported for synchronisation that it cannot see.
add_custom_target(deeppcr_tests_without_grpc)

# Sets ${result} to whether ${target} links a gRPC library, directly or through targets of ours.
function(deeppcr_links_grpc target result)
  set(queue ${target})
  set(seen)
  set(${result} FALSE PARENT_SCOPE)
  while(queue)
    list(POP_FRONT queue current)
    string(REGEX REPLACE "^\\$<LINK_ONLY:(.*)>$" "\\1" current "${current}")
    if(current MATCHES "^gRPC::")
      set(${result} TRUE PARENT_SCOPE)
      return()
    endif()
    if(NOT TARGET ${current} OR current IN_LIST seen)
      continue()
    endif()
    list(APPEND seen ${current})
    foreach(property LINK_LIBRARIES INTERFACE_LINK_LIBRARIES)
      get_target_property(libraries ${current} ${property})
      if(libraries)
        list(APPEND queue ${libraries})
      endif()
    endforeach()
  endwhile()
endfunction()
