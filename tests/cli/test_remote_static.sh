#!/bin/bash
# ctest: cost=8
# A bucket in a folder behind nginx: any static file server can be cloned from and fetched from, by ranges, and
# cannot be pushed to.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/bucket_lib.sh"
nginx=$(command -v nginx || command -v /usr/sbin/nginx) || { echo "skip: no nginx"; exit 77; }
cd "$tmp"
mkdir www
chmod 755 "$tmp" www
start() { # a free port: nginx itself says whether it could have it
    local try
    for try in 1 2 3 4 5 6 7 8; do
        port=$((20000 + RANDOM % 20000))
        cat >nginx.conf <<EOF2
worker_processes 1; daemon off; pid $tmp/nginx.pid; error_log $tmp/error.log info;
$([ "$(id -u)" != 0 ] || echo 'user root;')
events { worker_connections 64; }
http {
    access_log $tmp/access.log; client_body_temp_path $tmp/t1; proxy_temp_path $tmp/t2; fastcgi_temp_path $tmp/t3;
    uwsgi_temp_path $tmp/t4; scgi_temp_path $tmp/t5;
    server { listen 127.0.0.1:$port; root $tmp/www; }
}
EOF2
        : >error.log
        "$nginx" -c "$tmp/nginx.conf" -p "$tmp" >log 2>&1 &
        server=$!
        until grep -q 'start worker process' error.log || ! kill -0 $server 2>/dev/null; do sleep 0.05; done
        if kill -0 $server 2>/dev/null; then return 0; fi
        wait $server || true
    done
    echo "skip: nginx does not start here: $(cat log)"
    exit 77
}
start
trap 'kill $server 2>/dev/null || true; rm -rf "$tmp"' EXIT

family
want 0 init --bucket "$tmp/www/family"
want 0 -C a push "$tmp/www/family" --all
url=http://127.0.0.1:$port/family

say "clone and fetch"
want 0 clone "$url" b
for rev in base one two three v1; do same a b "$rev"; done
want 0 -C b fsck
grep -q '"GET /family/packs/[0-9a-f]*.pack HTTP/1.1" 206' access.log || die "no range was asked for"
want 0 -C b fetch
[ "$(travelled)" = 0 ] || die "$(cat err)"

say "a new child costs its own bytes on the wire"
child a base four 4
want 0 -C a push "$tmp/www/family" four
: >access.log
want 0 -C b pull
same a b four
sent=$(awk '$9 < 300 { sum += $10 } END { print sum }' access.log)
new=$(($(stat -c %s www/family/fmstore-bucket.json) + $(ls -t www/family/packs/*.pack | sed -n 1p | xargs stat -c %s) + \
    $(ls -t www/family/packs/*.heads | sed -n 1p | xargs stat -c %s) + \
    $(ls -t www/family/lineage/*.pack | sed -n 1p | xargs stat -c %s)))
[ "$sent" -le "$new" ] || die "$sent bytes on the wire for $new new ones: $(cat access.log)"

say "what cannot be"
want 1 -C a push "$url" --all
grep -q 'can only be read' err || die "$(cat err)"
want 128 clone "http://127.0.0.1:$port/nothing" x
grep -q 'no fmstore server answers there' err || die "$(cat err)"
[ ! -e x ] || die "a refused clone left a folder"

say "packs for a lineage on a git host"
git init -q --bare host.git
want 0 init --bucket "$tmp/www/packs"
want 0 -C a remote add host "$tmp/host.git" --packs "$tmp/www/packs"
want 0 -C a push host --all
want 0 clone "$tmp/host.git" --packs "http://127.0.0.1:$port/packs" of-host
same a of-host one
want 1 -C of-host push origin one:more
grep -q 'a static file server can only be read' err || die "$(cat err)"
echo ok
