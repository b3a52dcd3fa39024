# `cmake --install`: the library, its headers, a CMake package, a pkg-config file, and the tool.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)
install(TARGETS tessera EXPORT tesseraTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
install(DIRECTORY include/tessera DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT library
        FILES_MATCHING PATTERN "*.hpp")
install(EXPORT tesseraTargets NAMESPACE tessera:: DESTINATION ${package_dir} COMPONENT library)

configure_package_config_file(cmake/tesseraConfig.cmake.in
  ${PROJECT_BINARY_DIR}/package/tesseraConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/tesseraConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/package/tesseraConfig.cmake
              ${PROJECT_BINARY_DIR}/package/tesseraConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT library)

# The .pc file derives the prefix from its own location, so that the installation can be moved.
file(RELATIVE_PATH pc_to_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file(cmake/tessera.pc.in ${PROJECT_BINARY_DIR}/package/tessera.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/package/tessera.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT library)

# The command-line tool is a component of its own. It finds the library relative to itself, so that the
# installation can be moved.
function(tessera_install_tool)
  file(RELATIVE_PATH bin_to_lib "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")
  set_target_properties(tessera_tool PROPERTIES INSTALL_RPATH "$ORIGIN/${bin_to_lib}")
  install(TARGETS tessera_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tool)
endfunction()
