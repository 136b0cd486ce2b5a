#!/bin/bash
# ctest: cost=20
# kill -9 of a push or a pull, at either end: nothing is lost, and the same command goes on (remote_kill.py has
# more kills: remote_kill.py FMSTORE ATLAS 200 SEED folder|pipe).
. "$(dirname "$0")/lib.sh"
need_python
export TMPDIR=$tmp
say "in a folder"
python3 "$src/tests/cli/remote_kill.py" "$fm" "$atlas" 6 11 folder
say "over a pipe, as ssh gives it"
python3 "$src/tests/cli/remote_kill.py" "$fm" "$atlas" 8 12 pipe
