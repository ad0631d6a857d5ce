# SPDX-License-Identifier: MIT
# What `cmake --install` adds to the program: the libraries, the header, and the files by which pkg-config and
# find_package(ulysses) find them. All paths are relative to these files, so that a prefix can be chosen at install time
# and moved later.
include(CMakePackageConfigHelpers)
set(uly_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ulysses)

# what a program needs that links the static library
set(uly_private ${DNNL_LIBRARY} ${JANSSON_LINK_LIBRARIES} ${PCRE2_LINK_LIBRARIES} ${UTF8PROC_LINK_LIBRARIES})
set(uly_private_pc ${DNNL_LIBRARY})
if(OpenMP_C_FOUND)
  list(APPEND uly_private ${OpenMP_C_FLAGS})
  list(APPEND uly_private_pc ${OpenMP_C_FLAGS})
endif()
if(MPI_C_FOUND)
  list(APPEND uly_private ${MPI_C_LIBRARIES})
  list(APPEND uly_private_pc ${MPI_C_LIBRARIES})
endif()
list(APPEND uly_private -pthread m)
list(APPEND uly_private_pc -pthread -lm)
target_link_libraries(ulysses INTERFACE "$<INSTALL_INTERFACE:${uly_private}>")

if(TARGET ulysses_shared)
  set_target_properties(ulysses PROPERTIES EXPORT_NAME ulysses_static)
  set_target_properties(ulysses_shared PROPERTIES EXPORT_NAME ulysses)
endif()
install(TARGETS ${uly_installed} EXPORT ulysses)
install(DIRECTORY include/ulysses DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT ulysses NAMESPACE ulysses:: FILE ulyssesTargets.cmake DESTINATION ${uly_cmake_dir})
configure_package_config_file(tools/cmake/ulyssesConfig.cmake.in ${CMAKE_BINARY_DIR}/ulyssesConfig.cmake
  INSTALL_DESTINATION ${uly_cmake_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/ulyssesConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/ulyssesConfig.cmake ${CMAKE_BINARY_DIR}/ulyssesConfigVersion.cmake
  DESTINATION ${uly_cmake_dir})

file(RELATIVE_PATH uly_pc_prefix "/p/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/p")
string(REGEX REPLACE "/$" "" uly_pc_prefix "${uly_pc_prefix}")
list(JOIN uly_private_pc " " uly_pc_private)
configure_file(tools/cmake/ulysses.pc.in ${CMAKE_BINARY_DIR}/ulysses.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/ulysses.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
