# cmake -DSOURCE_DIR=... -DC_COMPILER=... -DCXX_COMPILER=... -DWORK_DIR=... -P headers.cmake: each public header compiles
# alone and in any order, without warnings, and stays light.
cmake_minimum_required(VERSION 3.25)
set(warnings -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror)
set(headers duet/c_api.h duet/decide.h duet/engine.h duet/error.h duet/export.h)
file(MAKE_DIRECTORY ${WORK_DIR})

function(compiles name text compiler)
  file(WRITE ${WORK_DIR}/${name} "${text}")
  execute_process(COMMAND ${compiler} ${ARGN} ${warnings} -fsyntax-only -I${SOURCE_DIR}/include ${WORK_DIR}/${name}
    RESULT_VARIABLE result ERROR_VARIABLE error)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${text}does not compile with ${compiler}:\n${error}")
  endif()
endfunction()

function(lines_of header limit language compiler standard)
  file(WRITE ${WORK_DIR}/one.${language} "#include <${header}>\n")
  execute_process(COMMAND ${compiler} -std=${standard} -E -P -I${SOURCE_DIR}/include ${WORK_DIR}/one.${language}
    RESULT_VARIABLE result OUTPUT_FILE ${WORK_DIR}/one.i)
  file(STRINGS ${WORK_DIR}/one.i lines)
  file(READ ${WORK_DIR}/one.i text)
  string(REGEX MATCHALL "\n" breaks "${text}")
  list(LENGTH breaks count)
  message("${header}: ${count} lines after the preprocessor, at most ${limit}")
  if(count EQUAL 0 OR count GREATER limit)
    message(FATAL_ERROR "${header} has ${count} lines after the preprocessor; at most ${limit} are allowed")
  endif()
endfunction()

foreach(first ${headers})
  compiles(one.cpp "#include <${first}>\n" ${CXX_COMPILER} -std=c++20)
  foreach(second ${headers})
    compiles(two.cpp "#include <${first}>\n#include <${second}>\n#include <${first}>\n" ${CXX_COMPILER} -std=c++20)
  endforeach()
endforeach()
compiles(one.c "#include <duet/c_api.h>\n#include <duet/export.h>\nint main(void) { return 0; }\n" ${C_COMPILER} -std=c11)
compiles(one.cpp "#include <duet/c_api.h>\nint main() { return 0; }\n" ${CXX_COMPILER} -std=c++98 -Wno-long-long)
execute_process(COMMAND ${CXX_COMPILER} --version OUTPUT_VARIABLE version)
if(version MATCHES "Free Software Foundation")  # The limits are of GCC's library.
  lines_of(duet/engine.h 42000 cpp ${CXX_COMPILER} c++20)
endif()
lines_of(duet/c_api.h 1500 c ${C_COMPILER} c11)
