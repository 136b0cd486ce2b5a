#!/bin/bash
# What a command does not need, it does not load at its start (bench/bench_start.py has the milliseconds).
. "$(dirname "$0")/lib.sh"
cd "$tmp"
want 0 init .
LD_DEBUG=bindings want 0 log
grep -q 'binding file' err || { echo "skip: this linker tells no bindings"; exit 77; }

say "libgit2 reads no certificates"
if grep 'mbedtls_x509_crt_parse_file' err | has -v "to $fm "; then
    die "$(grep 'mbedtls_x509_crt_parse_file' err)"
fi

say "only serve opens libmicrohttpd, and names it where it cannot be opened"
if grep -q 'libmicrohttpd' err; then die "$(grep -m1 'libmicrohttpd' err)"; fi
mkdir none
: >none/libmicrohttpd.so.12
want 0 import "$atlas/base" --as base --no-gate
LD_LIBRARY_PATH=$tmp/none refused 128 "libmicrohttpd.so.12: file too short; install libmicrohttpd12" \
    serve base --port 0

say "only what goes to another host opens libcurl, and names it where it cannot be opened"
want 0 init other
LD_DEBUG=bindings want 0 -C other import "$atlas/base" --as base --no-gate
if grep -q 'libcurl' err; then die "$(grep -m1 'libcurl' err)"; fi
: >none/libcurl.so.4
HF_HOME=$tmp/none LD_LIBRARY_PATH=$tmp/none refused 128 "libcurl.so.4: file too short; install libcurl4" \
    -C other import hf:org/name --as name
