# One interface target carries the warnings, the floating-point contract and the sanitizers.
add_library(fm_flags INTERFACE)
target_include_directories(fm_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_definitions(fm_flags INTERFACE _GNU_SOURCE FM_VERSION="${PROJECT_VERSION}")
target_compile_options(fm_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wdouble-promotion
  -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition -Wvla -Wcast-qual -Wcast-align
  -Wundef -Wwrite-strings -Wformat=2 -Wswitch-enum -Wimplicit-fallthrough -Wnull-dereference
  -Wpointer-arith
  # a*b+c is fused only where the source says fmaf: the bits of a result must not depend on a compiler
  -ffp-contract=off -fno-math-errno
  -ffile-prefix-map=${PROJECT_SOURCE_DIR}=. -fno-strict-aliasing)
if(FM_WERROR)
  target_compile_options(fm_flags INTERFACE -Werror)
endif()
if(FM_SANITIZE)
  # Instrumented code hides bounds and assignments from these three; the release build has them on.
  target_compile_options(fm_flags INTERFACE
    $<$<NOT:$<BOOL:$<TARGET_PROPERTY:FM_UNCHECKED>>>:-fsanitize=${FM_SANITIZE}>
    -fno-sanitize-recover=all -fno-omit-frame-pointer
    -Wno-null-dereference $<$<C_COMPILER_ID:GNU>:-Wno-format-truncation>
    $<$<C_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(fm_flags INTERFACE -fsanitize=${FM_SANITIZE})
endif()
if(FM_FUZZ)
  target_compile_options(fm_flags INTERFACE -fsanitize=fuzzer-no-link) # the library's branches count
endif()
