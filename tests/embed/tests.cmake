# Included by tests/CMakeLists.txt: embedding, public headers, exported symbols, the arrows between rooms.
set(embed ${CMAKE_CURRENT_LIST_DIR})
set(embed_work ${PROJECT_BINARY_DIR}/tests/embed)
set(embed_golden ${PROJECT_SOURCE_DIR}/tests/golden/data)

add_test(NAME rooms COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -P ${PROJECT_SOURCE_DIR}/tests/rooms.cmake)
add_test(NAME rooms.planted COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -DWORK_DIR=${embed_work}/rooms
  -P ${PROJECT_SOURCE_DIR}/tests/rooms_planted.cmake)
add_test(NAME embed.headers COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -DC_COMPILER=${CMAKE_C_COMPILER}
  -DCXX_COMPILER=${CMAKE_CXX_COMPILER} -DWORK_DIR=${embed_work}/headers -P ${embed}/headers.cmake)

if(NOT DUET_SANITIZE)  # Sanitizers add symbols of their own, and a stranger does not link them.
  add_test(NAME embed.symbols COMMAND ${CMAKE_COMMAND} -DLIBRARY=$<TARGET_FILE:duet_engine>
    -DLIST=${embed}/exported_symbols.txt -P ${embed}/symbols.cmake)
  add_test(NAME embed.installed COMMAND ${CMAKE_COMMAND} -DMODE=installed -DSOURCE_DIR=${PROJECT_SOURCE_DIR}
    -DBINARY_DIR=${PROJECT_BINARY_DIR} -DWORK_DIR=${embed_work}/installed -DGOLDEN=${embed_golden} -P ${embed}/embed.cmake)
  add_test(NAME embed.subdirectory COMMAND ${CMAKE_COMMAND} -DMODE=subdirectory -DSOURCE_DIR=${PROJECT_SOURCE_DIR}
    -DBINARY_DIR=${PROJECT_BINARY_DIR} -DWORK_DIR=${embed_work}/subdirectory -DGOLDEN=${embed_golden}
    "-DEXTRA=-DDUET_WERROR=${DUET_WERROR}" -P ${embed}/embed.cmake)
  set_tests_properties(embed.subdirectory PROPERTIES TIMEOUT 2400)
endif()
