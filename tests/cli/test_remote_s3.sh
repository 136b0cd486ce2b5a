#!/bin/bash
# ctest: cost=60
# s3:// against the server of the Python package moto, which checks signatures: a family goes there and comes back
# equal, uploads in parts go on after a kill, and writes are conditional.
#   FM_KILLS=n, FM_KILL_SEED=n: so many kills of pushes and pulls (8), and of their times.
#   FM_S3_PYTHON: a Python that has moto[server]; without it one is made by pip, and where that cannot be had the
#   test is skipped.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/bucket_lib.sh"
need_python
cd "$tmp"
python=${FM_S3_PYTHON:-}
if [ -z "$python" ]; then
    python3 -m venv venv >venv.log 2>&1 && timeout 300 venv/bin/pip install -q 'moto[server]>=5.1' >>venv.log 2>&1 ||
        { echo "skip: pip cannot bring moto: $(tail -1 venv.log)"; exit 77; }
    python=$tmp/venv/bin/python
fi
export AWS_EC2_METADATA_DISABLED=true HOME=$tmp
unset AWS_PROFILE AWS_SESSION_TOKEN AWS_CONFIG_FILE AWS_SHARED_CREDENTIALS_FILE AWS_REGION
start() { # a free port: the server itself says whether it could have it
    local try
    for try in 1 2 3 4 5 6 7 8; do
        port=$((20000 + RANDOM % 20000))
        "$python" -m moto.server -H 127.0.0.1 -p $port >log 2>&1 &
        server=$!
        until grep -q -e 'Running on' -e 'in use' log || ! kill -0 $server 2>/dev/null; do sleep 0.05; done
        if grep -q 'Running on' log && kill -0 $server 2>/dev/null; then return 0; fi
        wait $server || true
    done
    echo "skip: moto's server does not start here: $(tail -3 log)"
    exit 77
}
start
trap 'kill $server 2>/dev/null || true; rm -rf "$tmp"' EXIT
export AWS_ENDPOINT_URL=http://127.0.0.1:$port AWS_DEFAULT_REGION=eu-central-1
# A user and a bucket; from then on the server checks each signature.
"$python" - >keys <<'EOF2'
import json, os, boto3, urllib.request
with_any = dict(aws_access_key_id="x", aws_secret_access_key="y")
iam, s3 = boto3.client("iam", **with_any), boto3.client("s3", **with_any)
iam.create_user(UserName="u")
key = iam.create_access_key(UserName="u")["AccessKey"]
every = {"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "*", "Resource": "*"}}
iam.put_user_policy(UserName="u", PolicyName="p", PolicyDocument=json.dumps(every))
s3.create_bucket(Bucket="models", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
url = os.environ["AWS_ENDPOINT_URL"] + "/moto-api/reset-auth"
urllib.request.urlopen(urllib.request.Request(url, b"0", {"Content-Type": "text/plain"}, method="POST")).read()
print(key["AccessKeyId"], key["SecretAccessKey"])
EOF2
read -r access secret <keys
url="s3://models/team a/fam+ily"

say "who is not known is refused, and no text shows a secret"
export AWS_ACCESS_KEY_ID=$access AWS_SECRET_ACCESS_KEY=notthesecret
refused 1 "SignatureDoesNotMatch" ls-remote "$url"
grep -q notthesecret err && die "the secret is shown"
unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY
mkdir .aws
printf '[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n' "$access" "$secret" >.aws/credentials
refused 128 "there is no repository of fmstore" ls-remote "$url"
refused 128 "NoSuchBucket" ls-remote s3://nothing-here/x

say "kill -9 of a push or a pull, of what stands before the server too; the next run goes on"
TMPDIR=$tmp "$python" "$src/tests/cli/remote_kill.py" "$fm" "$atlas" "${FM_KILLS:-8}" "${FM_KILL_SEED:-19}" s3

family
push_and_clone "$url"
two_at_once "$url"

say "an upload in parts that was killed goes on"
"$python" - <<'EOF2'
import random, struct, json # a model of 96 MiB that does not compress
random.seed(7)
n, d = 12, 2 << 20
header, at = {}, 0
for i in range(n):
    header[f"w{i}"] = {"dtype": "F32", "shape": [d], "data_offsets": [at, at + 4 * d]}
    at += 4 * d
h = json.dumps(header).encode()
with open("big.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(h)) + h)
    for i in range(n):
        f.write(random.randbytes(4 * d))
EOF2
want 0 init big
want 0 -C big import "$tmp/big.safetensors" --as big --no-gate
parts() { grep -c 'PUT .*partNumber=' log || true; }
before=$(parts)
"$fm" -C big push s3://models/big big >out 2>err &
pid=$!
until [ "$(parts)" -ge $((before + 2)) ] || ! kill -0 $pid 2>/dev/null; do sleep 0.01; done
kill -9 $pid 2>/dev/null || die "it ended before it was killed: $(cat err)"
{ wait $pid; } 2>/dev/null || true
refused 128 "there is no repository of fmstore" ls-remote s3://models/big
first=$(($(parts) - before))
want 0 -C big push s3://models/big big
both=$(($(parts) - before))
say "$first parts before the kill, $both in all"
[ "$both" -le 12 ] || die "parts were sent again: $both" # 7 parts, and what was on its way when it was killed
[ $((both - first)) -lt 7 ] || die "no part was taken over"
say "of two who push the same pack the one that stood still finds that it is there"
cp -r big twin
before=$(parts)
"$fm" -C big push s3://models/twins big >out2 2>err2 &
pid=$!
until [ "$(parts)" -ge $((before + 2)) ] || ! kill -0 $pid 2>/dev/null; do sleep 0.01; done
kill -STOP $pid || die "it ended before it was stopped: $(cat err2)"
want 0 -C twin push s3://models/twins big
kill -CONT $pid
wait $pid || die "$(cat err2)"
want 0 clone s3://models/twins both
want 0 -C both fsck
want 0 clone s3://models/big big2
want 0 -C big2 fsck
want 0 -C big2 export big "$tmp/back.safetensors" --format source
cmp big.safetensors back.safetensors || die "another file came back"
"$python" -c "
import boto3
left = boto3.client('s3').list_multipart_uploads(Bucket='models').get('Uploads', [])
assert not left, left"

say "packs for a lineage on a git host"
git init -q --bare host.git
want 0 -C a remote add host "$tmp/host.git" --packs "s3://models/packs of/host"
want 0 -C a push host --all
want 0 clone "$tmp/host.git" --packs "s3://models/packs of/host" of-host
same a of-host one
child of-host one of-host 11
want 0 -C of-host push origin of-host
want 0 -C a fetch host
echo ok
