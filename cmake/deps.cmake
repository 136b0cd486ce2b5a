# Debian 12 packages, found by pkg-config; nothing is vendored. quickstart and check install them.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
foreach(dep IN ITEMS
    "GIT2 libgit2>=1.5" "SQLITE sqlite3>=3.40" "ZSTD libzstd>=1.5" "CRYPTO libcrypto>=3.0"
    "JANSSON jansson>=2.14" "YAML yaml-0.1" "PCRE2 libpcre2-8>=10.40" "UTF8PROC libutf8proc"
    "MHD libmicrohttpd>=0.9.70")
  separate_arguments(part UNIX_COMMAND "${dep}")
  list(GET part 0 name)
  list(GET part 1 module)
  pkg_check_modules(${name} REQUIRED IMPORTED_TARGET ${module})
endforeach()
if(FM_TESTS)
  pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)
endif()
