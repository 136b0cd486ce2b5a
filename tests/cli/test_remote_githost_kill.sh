#!/bin/bash
# ctest: cost=60
# kill -9 of a push to a git host with a bucket, and of a pull from them, or of the git that works for it: nothing is
# lost, the host is whole at any time, and the same command goes on (remote_kill.py FMSTORE ATLAS 200 SEED githost has
# more kills).
. "$(dirname "$0")/lib.sh"
need_python
command -v git >/dev/null || { echo "skip: no git"; exit 77; }
export TMPDIR=$tmp HOME=$tmp
python3 "$src/tests/cli/remote_kill.py" "$fm" "$atlas" 32 13 githost
