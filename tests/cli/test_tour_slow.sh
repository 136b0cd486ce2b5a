#!/bin/bash
# ctest: cost=40
# docs/tour.md is what the tour prints: every word and number of it but times, sizes, ids and ports.
. "$(dirname "$0")/lib.sh"
need_python
say "examples/tour.sh atlas"
FM_TOUR_DIR=$tmp/tour "$src/examples/tour.sh" atlas >"$tmp/out" 2>&1 || die "the tour fails: $(cat "$tmp/out")"
python3 "$src/tests/cli/doc_outputs.py" tour "$src/docs/tour.md" "$tmp/out" >"$tmp/bad" ||
    die "docs/tour.md is not what the tour prints: $(cat "$tmp/bad")"
echo "all hold"
