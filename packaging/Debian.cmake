# `cpack -G DEB` in a build tree makes one package of all components. tools/package.sh builds one
# without CUDA, which depends on nothing of NVIDIA's.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME ringfill)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_VENDOR "The ringfill authors")
set(CPACK_PACKAGE_CONTACT "The ringfill authors <ringfill@localhost>")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR})
# With DESTDIR absolute paths can be packed: /etc.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "adduser")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "systemd")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "server of large language models for long prompts")
set(CPACK_PACKAGE_DESCRIPTION
"ringfilld splits a prompt over ranks, reads it exactly with ring attention,
keeps the keys and values in pages where they were computed, and streams the
answer over gRPC, with progress while a prompt is read and metrics for
Prometheus. Ranks are threads or processes, here or on several hosts.

ringfill is its command line. Models are files in the GGUF format; none is
included.")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
  ${CMAKE_CURRENT_SOURCE_DIR}/debian/conffiles
  ${CMAKE_CURRENT_SOURCE_DIR}/debian/postinst
  ${CMAKE_CURRENT_SOURCE_DIR}/debian/prerm
  ${CMAKE_CURRENT_SOURCE_DIR}/debian/postrm)

# What only a Debian package has.
install(FILES ${generated}/changelog.gz debian/copyright DESTINATION ${doc} COMPONENT debian
        EXCLUDE_FROM_ALL)
install(FILES debian/lintian-overrides DESTINATION share/lintian/overrides RENAME ringfill
        COMPONENT debian EXCLUDE_FROM_ALL)
set(CPACK_COMPONENTS_ALL daemon cli doc debian)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
# One package: without a component's name in its own.
set(CPACK_DEBIAN_ALL_COMPONENTS_IN_ONE_FILE_NAME DEB-DEFAULT)
include(CPack)
