# Compiler settings shared by every target of the project; nothing here leaks to people who embed Duet.

find_program(DUET_CCACHE ccache)
if(DUET_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${DUET_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${DUET_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${DUET_CCACHE})
endif()

set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_EXTENSIONS OFF)

add_library(duet_settings INTERFACE)
target_compile_features(duet_settings INTERFACE cxx_std_20)
target_include_directories(duet_settings INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(duet_settings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor -Woverloaded-virtual
    -Wold-style-cast -Wcast-align -Wnull-dereference -fvisibility=hidden -fvisibility-inlines-hidden -ffp-contract=off>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports impossible null dereferences and overlapping copies inside its own <string> and <regex> when optimising.
  target_compile_options(duet_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-null-dereference -Wno-restrict>)
endif()
if(DUET_WERROR)
  target_compile_options(duet_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(DUET_ASSERTS)
  target_compile_options(duet_settings INTERFACE -UNDEBUG)
endif()
if(DUET_SANITIZE)
  target_compile_options(duet_settings INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(duet_settings INTERFACE -fsanitize=address,undefined)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Instrumented code makes GCC see uninitialised reads inside <functional> and <regex>, as its manual warns.
    target_compile_options(duet_settings INTERFACE -Wno-maybe-uninitialized)
  endif()
endif()
if(DUET_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "DUET_FUZZ needs clang++, and CMAKE_CXX_COMPILER is ${CMAKE_CXX_COMPILER}; use the preset 'fuzz'.")
  endif()
  target_compile_options(duet_settings INTERFACE -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
  target_link_options(duet_settings INTERFACE -fsanitize=address,undefined)
endif()
