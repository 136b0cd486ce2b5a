#!/bin/bash
# ctest: cost=8
# Among more branches than are candidates, import finds the one that a model comes from, and says how many were
# passed over.
. "$(dirname "$0")/lib.sh"
need_python
cd "$tmp"
# Siblings: one base, each moved by noise of its own. The child: the last one, moved a little more.
python3 - <<'PY'
import array, json, random, struct
def noise(seed, scale):
    r = random.Random(seed)
    return [r.gauss(0, scale) for _ in range(64 * 64)]
def write(path, *parts):
    w = array.array("f", map(sum, zip(*parts)))
    head = json.dumps({"model.layers.0.mlp.up_proj.weight":
                       {"dtype": "F32", "shape": [64, 64], "data_offsets": [0, 4 * len(w)]}}).encode()
    open(path, "wb").write(struct.pack("<Q", len(head)) + head + w.tobytes())
base = noise("base", 0.02)
for n in range(100, 170):
    write("%d.safetensors" % n, base, noise(n, 0.002))
write("child.safetensors", base, noise(169, 0.002), noise("child", 2e-7))
PY
mkdir repo && cd repo
want 0 init .

say "where 64 are offered nothing is passed over, beyond that it is said"
for i in $(seq 100 164); do want 0 import "../$i.safetensors" --as "s$i"; done
! grep -q farther "$tmp/err" || die "$(cat "$tmp/err")"
for i in $(seq 165 169); do want 0 import "../$i.safetensors" --as "s$i"; done
sed -n 's/.* in, \([0-9.]*\) kB stored.*/\1/p' "$tmp/out" >"$tmp/sibling"
grep -q "note: coded against what the nearest branches hold; 5 farther ones" "$tmp/err" || die "$(cat "$tmp/err")"

say "the last of 70 is the parent"
want 0 import ../child.safetensors --as child
grep -q "; 6 farther ones" "$tmp/err" || die "$(cat "$tmp/err")"
sed -n 's/.* in, \([0-9.]*\) kB stored.*/\1/p' "$tmp/out" >"$tmp/child"
python3 -c 'import sys; s, c = (float(open(f).read()) for f in sys.argv[1:]); sys.exit(c > 0.6 * s)' \
    "$tmp/sibling" "$tmp/child" || die "a sibling takes $(cat "$tmp/sibling") kB, the child $(cat "$tmp/child")"
want 0 fsck

say "a branch that cannot be read stops no import, and is named"
git_here() { git -C .fmstore/lineage.git -c safe.directory='*' -c user.name=t -c user.email=t@t "$@"; }
blob=$(printf 'fmstore tensor 2\nid sha512:00\n' | git_here hash-object -w --stdin)
tree=$(printf '100644 blob %s\tx.weight\n' "$blob" | git_here mktree)
tree=$(printf '040000 tree %s\ttensors\n' "$tree" | git_here mktree)
git_here update-ref refs/heads/newer "$(git_here commit-tree -m x "$tree")"
want 0 import ../100.safetensors --as beside
grep -q 'note: .* not coded against refs/heads/newer: version .* a pointer of a newer fmstore' "$tmp/err" ||
    die "$(cat "$tmp/err")"
echo 1234567890123456789012345678901234567890 >.fmstore/lineage.git/refs/heads/gone
want 0 import ../101.safetensors --as beside2
grep -q "note: .* not coded against any branch: ref 'refs/heads/gone' cannot be read" "$tmp/err" ||
    die "$(cat "$tmp/err")"
rm .fmstore/lineage.git/refs/heads/gone
git_here update-ref -d refs/heads/newer
want 0 fsck
