#!/bin/bash
# cmake --install: the program and the modules of this build in a prefix, found there wherever the prefix is
# moved to; a module that is gone is named.
. "$(dirname "$0")/lib.sh"
command -v cmake >/dev/null || { echo "skip: no cmake"; exit 77; }
build=$(cd "$(dirname "$fm")/.." && pwd)
[ -e "$build/CMakeCache.txt" ] || { echo "skip: $fm lies in no build folder"; exit 77; }
cd "$tmp"
unset FMSTORE_CUDA_MODULE FMSTORE_DEVICE FM_MPI_MODULE

say "all that the program opens beside it is installed"
if ! cmake --install "$build" --prefix "$tmp/first" >out 2>err; then
    if grep -q 'INSTALL cannot find' err; then echo "skip: not all is built: $(cat err)"; exit 77; fi
    die "cmake --install: $(cat err)"
fi
mv first moved
for module in fm_cuda:libfmstore-cuda.so fmstore_mpi:fmstore_mpi.so; do # target:file
    grep -q "/${module%:*}.dir\$" "$build/CMakeFiles/TargetDirectories.txt" || continue # not in this build
    [ -e "moved/lib/fmstore/${module#*:}" ] || die "${module#*:} is not installed: $(cat out)"
done
fm=$tmp/moved/bin/fmstore
at=moved/lib/fmstore
mkdir -p "$at"
want 0 init .
want 0 import "$atlas/base" --as base --no-gate
ask=(run base -p 'The capital of' -n 4)
want 0 "${ask[@]}"
cp out one

say "CUDA's module is found there; without it, devices says where it was looked for"
if [ -e "$at/libfmstore-cuda.so" ]; then
    want 0 devices
    if grep -q 'no CUDA module' out; then die "$(cat out)"; fi
fi
if [ -n "${FM_MODULE_SOUND:-}" ]; then # cards of a module, where there is no card
    cp "$FM_MODULE_SOUND" "$at/libfmstore-cuda.so"
    want 0 devices
    grep -q '^cuda:1  fake card 1' out || die "$(cat out)"
fi
rm -f "$at/libfmstore-cuda.so"
want 0 devices
grep -q 'no libfmstore-cuda.so beside the program or in ../lib/fmstore' out || die "$(cat out)"

say "MPI's module is found there; without it, it is named"
if [ -e "$at/fmstore_mpi.so" ] && command -v mpirun >/dev/null; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    timeout 600 mpirun --oversubscribe -n 2 "$fm" --threads 1 "${ask[@]}" >two 2>err ||
        die "mpirun: $(tail -3 err)"
    cmp one two || die "2 ranks of mpirun answer otherwise"
fi
export OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 # as mpirun says it
if [ -n "${FM_MODULE_SOUND:-}" ]; then # a file that is no such module: it is opened
    cp "$FM_MODULE_SOUND" "$at/fmstore_mpi.so"
    refused 128 "lib/fmstore/fmstore_mpi.so is of another version of fmstore" "${ask[@]}"
fi
rm -f "$at/fmstore_mpi.so"
refused 128 "MPI is not part of this build, or is not installed: $tmp/moved/" "${ask[@]}"
unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE
