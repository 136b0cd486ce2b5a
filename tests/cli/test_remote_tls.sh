#!/bin/bash
# ctest: cost=15
# A remote behind nginx: TLS with a certificate authority of the test, basic credentials by git's credential
# helper, a path before the repository. Skipped where nginx or openssl is missing.
. "$(dirname "$0")/lib.sh"
for program in nginx openssl git; do
    command -v "$program" >/dev/null || { echo "skip: no $program"; exit 77; }
done
need_python
cd "$tmp"
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=$tmp/gitconfig
unset FMSTORE_TOKEN GIT_SSL_CAINFO CURL_CA_BUNDLE SSL_CERT_FILE
server=0 proxy=0
trap 'for p in $server $proxy; do [ "$p" = 0 ] || kill "$p" 2>/dev/null || true; done; rm -rf "$tmp"' EXIT

say "a certificate authority, and a certificate of localhost"
openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj '/CN=test authority' \
    -addext basicConstraints=critical,CA:TRUE 2>/dev/null
openssl req -newkey rsa:2048 -nodes -keyout tls.key -out tls.csr -subj '/CN=localhost' 2>/dev/null
printf 'subjectAltName=DNS:localhost\n' >ext
openssl x509 -req -in tls.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out tls.pem 2>/dev/null
printf 'reader:%s\n' "$(openssl passwd -apr1 'p:a ss')" >users

want 0 init a
want 0 -C a import "$atlas/base" --as base --no-gate
echo inner-key >key
"$fm" -C a serve --port 0 --remote-write --api-key-file "$tmp/key" >serve.out 2>serve.err </dev/null &
server=$!
until_there "$server" serve.out 'a remote at that URL'
inner=$(sed -n 's|^serving on http://\([0-9.:]*\) .*|\1|p' serve.out)
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
mkdir -p ngx/tmp
cat >ngx/conf <<END
worker_processes 1;
daemon off;
pid $tmp/ngx/pid;
error_log $tmp/ngx/error.log;
events { worker_connections 64; }
http {
    access_log off;
    client_body_temp_path $tmp/ngx/tmp/a;
    proxy_temp_path $tmp/ngx/tmp/b;
    fastcgi_temp_path $tmp/ngx/tmp/c;
    uwsgi_temp_path $tmp/ngx/tmp/d;
    scgi_temp_path $tmp/ngx/tmp/e;
    server {
        listen 127.0.0.1:$port ssl;
        server_name localhost;
        ssl_certificate $tmp/tls.pem;
        ssl_certificate_key $tmp/tls.key;
        client_max_body_size 0;
        location /models/atlas/ {
            auth_basic "models";
            auth_basic_user_file $tmp/users;
            proxy_pass http://$inner/;
            proxy_http_version 1.1;
            proxy_request_buffering off;
            proxy_buffering off;
            proxy_buffer_size 256k;
            proxy_buffers 8 256k;
            proxy_set_header Host \$host;
            proxy_set_header Authorization "Bearer inner-key";
        }
        location /small/ {
            client_max_body_size 10;
            proxy_pass http://$inner/;
        }
        location /files/ { alias $tmp/files/; }
        location /moved/ { return 301 https://localhost:$port/models/atlas/fmstore/wire; }
    }
}
END
chmod 755 "$tmp" && chmod 644 users
nginx -p "$tmp/ngx" -c "$tmp/ngx/conf" >ngx/out 2>&1 &
proxy=$!
until python3 -c "import socket; socket.create_connection(('127.0.0.1', $port))" 2>/dev/null; do
    kill -0 "$proxy" 2>/dev/null || die "nginx: $(cat ngx/out ngx/error.log)"
done
url=https://localhost:$port/models/atlas

say "an authority that is not trusted, and then is: by git's configuration, the repository's, the environment"
: >gitconfig
refused 128 "its certificate is not trusted" ls-remote "$url"
cat >helper <<END
#!/bin/sh
cat >$tmp/helped
[ "\$1" = get ] && printf 'username=reader\npassword=p:a ss\n'
exit 0
END
chmod +x helper
git config -f gitconfig credential.helper "$tmp/helper"
git config -f gitconfig "http.https://localhost:$port/.sslCAInfo" "$tmp/ca.pem"
want 0 ls-remote "$url"
git config -f gitconfig --unset "http.https://localhost:$port/.sslCAInfo"
refused 128 "its certificate is not trusted" ls-remote "$url"
GIT_SSL_CAINFO=$tmp/ca.pem want 0 ls-remote "$url"
want 0 init r
refused 128 "its certificate is not trusted" -C r ls-remote "$url"
git config -f r/.fmstore/config http.sslCAInfo "$tmp/ca.pem"
want 0 -C r ls-remote "$url"
refused 128 "certificate" -C r ls-remote "https://127.0.0.1:$port/models/atlas" # another name than its own
export GIT_SSL_CAINFO=$tmp/ca.pem

say "credentials"
git config -f gitconfig credential.helper ''
refused 1 "wants a key" ls-remote "$url"
git config -f gitconfig credential.helper "!printf 'password=wrong\\nusername=reader\\n'; :"
refused 1 "does not take the key or password" ls-remote "$url"
git config -f gitconfig credential.helper "$tmp/helper"

say "clone and push through it"
want 0 clone "$url" b
"$fm" -C a export base "$tmp/one" >/dev/null 2>&1
"$fm" -C b export base "$tmp/two" >/dev/null 2>&1
diff -r one two || die "base differs"
want 0 -C b derive base --as child --method lora --data "$atlas/pirate.jsonl" --set steps=1 --set r=2 --no-gate
want 0 -C b push origin child
want 0 -C a show child
want 0 -C a fsck

say "a bucket's files behind it, by the same certificates"
want 0 init --bucket files
want 0 -C a push "$tmp/files" base
chmod -R go+rX files
want 0 clone "https://localhost:$port/files" c
GIT_SSL_CAINFO='' refused 128 "its certificate is not trusted" ls-remote "https://localhost:$port/files"

say "a proxy that limits bodies, and one that sends on"
refused 128 "takes no body of this size" ls-remote "https://localhost:$port/small"
refused 128 "sends on to https://localhost:$port/models/atlas; if you trust that" ls-remote \
    "https://localhost:$port/moved"
