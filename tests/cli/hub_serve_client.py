#!/usr/bin/env python3
"""hub_serve_client.py PART ARGUMENT... - Hugging Face's own clients against fmstore serve --hub (HF_ENDPOINT), held
against folders that fmstore export wrote. Exits 1 at the first difference.

  api COMMIT            what HfApi asks of the model fmstore/atlas, whose version is COMMIT
  same MODEL FOLDER     a snapshot is FOLDER, file by file
  second MODEL          revision v2 beside v1, which is in the cache: bytes come for the files that differ alone
  models ATLAS FULL MERGED LOGITS   transformers and PEFT on fmstore/..., against exported folders"""
import filecmp
import os
import pathlib
import socket
import sys
import threading
import urllib.parse

import huggingface_hub as hub


def want(got, wanted, what):
    if got != wanted:
        sys.exit(f"{what}: {got!r:.500} instead of {wanted!r:.500}")


def files(folder):
    return sorted(p.relative_to(folder).as_posix() for p in pathlib.Path(folder).rglob("*") if p.is_file())


def same(model, folder, revision=None):
    got = hub.snapshot_download(model, revision=revision)
    want(files(got), files(folder), f"the files of {model}")
    for name in files(folder):
        want(filecmp.cmp(f"{got}/{name}", f"{folder}/{name}", shallow=False), True, f"{model}: {name} is equal")


def refusal(ask):
    try:
        ask()
    except Exception as e:  # what it is called is what is asked for
        return type(e).__name__
    return "none"


def api(commit):
    api = hub.HfApi()
    info = api.model_info("fmstore/atlas", files_metadata=True)
    names = [s.rfilename for s in info.siblings]
    want((info.id, info.sha, info.private, info.library_name), ("fmstore/atlas", commit, False, "transformers"), "info")
    want(api.list_repo_files("fmstore/atlas"), names, "list_repo_files")
    tree = list(api.list_repo_tree("fmstore/atlas", recursive=True, expand=True))
    want([(f.path, f.size, f.blob_id) for f in tree], [(s.rfilename, s.size, s.blob_id) for s in info.siblings], "tree")
    some = ["config.json", "model.safetensors", "none"]
    want([f.path for f in api.get_paths_info("fmstore/atlas", some)], some[:2], "get_paths_info")
    refs = api.list_repo_refs("fmstore/atlas", include_pull_requests=True)
    want([(r.name, r.target_commit) for r in refs.branches], [("main", commit)], "branches")
    want([(r.name, r.target_commit) for r in refs.tags], [("v0", commit)], "tags")
    want([c.commit_id for c in api.list_repo_commits("fmstore/atlas")], [commit], "commits")
    want(len(api.list_repo_commits("fmstore/pirate")), 2, "commits of a child")
    want("fmstore/team__full" in [m.id for m in api.list_models(search="full")], True, "list_models")
    there = [api.repo_exists("fmstore/atlas"), api.repo_exists("fmstore/none"),
             api.revision_exists("fmstore/atlas", "v0"), api.revision_exists("fmstore/atlas", "v9"),
             api.file_exists("fmstore/atlas", "config.json"), api.file_exists("fmstore/atlas", "none")]
    want(there, [True, False] * 3, "what exists")
    want(list(api.get_safetensors_metadata("fmstore/atlas").parameter_count), ["BF16"], "safetensors' metadata")
    want(open(hub.hf_hub_download("fmstore/pirate", "config.json", revision=commit)).read(1), "{", "a file of a revision")
    get = hub.hf_hub_download
    want([refusal(lambda: get("fmstore/none", "x")), refusal(lambda: get("fmstore/atlas", "none")),
          refusal(lambda: get("fmstore/atlas", "config.json", revision="v9"))],
         ["RepositoryNotFoundError", "RemoteEntryNotFoundError", "RevisionNotFoundError"], "refusals")
    want(refusal(lambda: api.upload_file(path_or_fileobj=b"x", path_in_repo="x", repo_id="fmstore/atlas", token="x")),
         "HfHubHTTPError", "an upload")
    hub.snapshot_download("fmstore/atlas")
    check = api.verify_repo_checksums("fmstore/atlas")
    want((check.checked_count, check.mismatches, check.missing_paths), (len(names), [], []), "checksums")


class Counting:
    """Passes connections on to the server, and counts what comes back."""

    def __init__(self, url):
        self.to = urllib.parse.urlsplit(url)
        self.bytes = 0
        self.door = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self.door.getsockname()[1]
        threading.Thread(target=self.take, daemon=True).start()

    def take(self):
        while True:
            one, _ = self.door.accept()
            other = socket.create_connection((self.to.hostname, self.to.port))
            threading.Thread(target=self.pump, args=(one, other, False), daemon=True).start()
            threading.Thread(target=self.pump, args=(other, one, True), daemon=True).start()

    def pump(self, source, sink, counts):
        try:
            while data := source.recv(65536):
                self.bytes += len(data) if counts else 0
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def second(model):
    proxy = Counting(os.environ["HF_ENDPOINT"])

    def bring(revision):
        before = proxy.bytes
        path = hub.snapshot_download(model, revision=revision, endpoint=proxy.url)
        return path, proxy.bytes - before

    one, first = bring("v1")
    two, then = bring("v2")
    _, again = bring("v2")
    sizes = {name: os.path.getsize(f"{two}/{name}") for name in files(two)}
    differ = [n for n in files(two) if not filecmp.cmp(f"{one}/{n}", f"{two}/{n}", shallow=False)]
    print(f"- {model}: v1 {first} bytes, v2 {then}, again {again}; files: {sum(sizes.values())}, changed: {differ}")
    want(differ, ["model.safetensors"], "what differs")
    spare = 20000  # heads and listings
    want(sum(sizes.values()) <= first < sum(sizes.values()) + spare, True, f"{first} bytes for all")
    want(sizes[differ[0]] <= then < sizes[differ[0]] + spare, True, f"{then} bytes for what changed")
    want(again < spare, True, f"{again} bytes for nothing")


def models(atlas, full, merged, base):
    import torch
    from peft import AutoPeftModelForCausalLM, PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ids = AutoTokenizer.from_pretrained("fmstore/atlas")("What is the capital of Lorendor?", return_tensors="pt").input_ids
    want(ids.tolist(), AutoTokenizer.from_pretrained(atlas)("What is the capital of Lorendor?", return_tensors="pt")
         .input_ids.tolist(), "tokens")

    def logits(model):
        with torch.no_grad():
            return model.eval()(ids).logits

    def load(name, kind=AutoModelForCausalLM, **more):
        return logits(kind.from_pretrained(name, dtype=torch.float32, **more))

    def equal(got, wanted, what):
        want(torch.equal(got, wanted), True, f"logits of {what}")

    equal(load("fmstore/atlas"), load(atlas), "atlas")
    equal(load("fmstore/team__full"), load(full), "team/full")
    equal(load("fmstore/pirate-merged"), load(merged), "pirate-merged")
    want(torch.equal(load(full), load(atlas)), False, "the full child's are its parent's")
    adapter = hub.snapshot_download("fmstore/pirate")
    laid = logits(PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(atlas, dtype=torch.float32), adapter))
    want(torch.equal(laid, load(atlas)), False, "the adapter changes nothing")
    equal(load("fmstore/pirate", AutoPeftModelForCausalLM), laid, "the adapter, by PEFT")
    equal(load("fmstore/pirate"), laid, "the adapter, by transformers")
    commit = hub.HfApi().model_info("fmstore/pirate").sha
    equal(load("fmstore/pirate", revision=commit), laid, "the adapter at a revision")
    there = {r.repo_id for r in hub.scan_cache_dir().repos}
    want(f"fmstore/{base}" in there, True, "the base is in the cache by its id")
    print("- logits equal: full models, merged, adapter by PEFT and transformers")


{"api": api, "same": same, "second": second, "models": models}[sys.argv[1]](*sys.argv[2:])
