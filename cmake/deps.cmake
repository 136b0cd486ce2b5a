# Debian 12 packages, found by pkg-config; nothing is vendored. quickstart and check install them.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
foreach(dep IN ITEMS
    "GIT2 libgit2>=1.5" "SQLITE sqlite3>=3.40" "ZSTD libzstd>=1.5" "CRYPTO libcrypto>=3.0"
    "JANSSON jansson>=2.14" "YAML yaml-0.1" "PCRE2 libpcre2-8>=10.40" "UTF8PROC libutf8proc"
    "MHD libmicrohttpd>=0.9.70" "EXPAT expat>=2.5" "XXHASH libxxhash>=0.8" "CURL libcurl>=7.88"
    "ZLIB zlib>=1.2")
  separate_arguments(part UNIX_COMMAND "${dep}")
  list(GET part 0 name)
  list(GET part 1 module)
  pkg_check_modules(${name} REQUIRED IMPORTED_TARGET ${module})
endforeach()
if(FM_TESTS)
  pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)
endif()

# The CUDA backend is built where nvcc is (or can be asked for); FM_WITH_CUDA says whether it is.
set(FM_CUDA AUTO CACHE STRING "Build the CUDA backend: ON, OFF, or AUTO: where nvcc is found")
set(FM_CUDA_ARCH "80-virtual;90-real" CACHE STRING "Cards that it is built for (CUDA_ARCHITECTURES)")
set(FM_WITH_CUDA ${FM_CUDA})
if(FM_CUDA STREQUAL "AUTO")
  if(NOT CMAKE_CUDA_COMPILER AND NOT FM_SANITIZE AND NOT FM_FUZZ)
    find_program(FM_NVCC nvcc HINTS ENV CUDAToolkit_ROOT PATHS /usr/local/cuda/bin)
    mark_as_advanced(FM_NVCC)
    if(FM_NVCC)
      set(CMAKE_CUDA_COMPILER ${FM_NVCC})
    endif()
  endif()
  set(FM_WITH_CUDA OFF)
  if(CMAKE_CUDA_COMPILER)
    set(FM_WITH_CUDA ON)
  endif()
endif()
