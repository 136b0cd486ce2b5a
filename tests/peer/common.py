"""What the checks against PyTorch, transformers and PEFT share: running fmstore in a scratch repository,
comparing, and keeping the peers' warnings so that none passes unseen."""

import argparse
import contextlib
import hashlib
import io
import json
import logging
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import warnings

os.environ.setdefault(
    "HF_HUB_OFFLINE", "1"
)  # nothing here may come from elsewhere than our exports
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import transformers

transformers.utils.logging.disable_progress_bar()

ATLAS = pathlib.Path(__file__).resolve().parents[2] / "examples" / "atlas"

# Log-probabilities of two correct float32 programs, whose sums run in another order. Small models (2 to 6
# layers): 1.3e-5 is the most that was seen, a rounding of a logit near 32 is 2e-6, and there are dozens.
LOGPROB_TOL = 3e-5
# SmolLM2 (30 layers, hidden states up to 22,000): against float64, transformers is off by up to 4.8e-5 and
# fmstore by up to 7.1e-5; together 1.2e-4, and some room for other texts.
DEEP_TOL = 1.5e-4
# A choice between two tokens that are nearer than this is rounding, not an answer.
TIE = 1e-3

# Said by the peers about themselves or the machine, not about our files.
HARMLESS = re.compile(
    r"CUDA|longer than the specified maximum sequence length|is_gradient_checkpointing. is deprecated"
)


class Failed(Exception):
    pass


class Report:
    """Counts facts; the first false one ends the run with exit 1."""

    def __init__(self):
        self.count = 0

    def check(self, fact, what):
        self.count += 1
        if not fact:
            raise Failed(what)

    def near(self, got, want, tol, what):
        got, want = torch.as_tensor(got, dtype=torch.float64), torch.as_tensor(
            want, dtype=torch.float64
        )
        self.check(
            got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, want {tuple(want.shape)}"
        )
        diff = (got - want).abs().max().item() if got.numel() else 0.0
        self.check(diff <= tol, f"{what}: off by {diff:.3g}, allowed {tol:.3g}")
        return diff


class Store:
    """A repository in a scratch folder, through the program alone."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        subprocess.run([program, "init", folder], check=True, stdout=subprocess.DEVNULL)

    def __call__(self, *args, text=None):
        run = subprocess.run(
            [self.program, "-C", self.folder, *map(str, args)],
            input=text,
            capture_output=True,
            text=True,
        )
        if run.returncode != 0:
            raise Failed(
                f"fmstore {' '.join(map(str, args))}: exit {run.returncode}: {run.stderr.strip()}"
            )
        return run.stdout

    def lines(self, *args, ask):
        out = self(*args, text="".join(json.dumps(q) + "\n" for q in ask))
        return [json.loads(line) for line in out.splitlines()]

    def score(self, rev, ids, top):
        return self.lines("score", rev, "--top", top, ask=[{"ids": i} for i in ids])

    def tokenize(self, rev, texts):
        return [x["ids"] for x in self.lines("tokenize", rev, ask=[{"text": t} for t in texts])]

    def export(self, rev, folder, fmt="hf", dtype=None):
        self("export", rev, folder, "--format", fmt, *(["--dtype", dtype] if dtype else []))
        return folder


class Peers(contextlib.AbstractContextManager):
    """Everything that the peers log or warn while inside; leaving with something unknown is a failure."""

    def __init__(self, what, expect=None):
        self.what, self.expect, self.log = what, re.compile(expect or r"(?!)"), io.StringIO()

    def __enter__(self):
        self.handler = logging.StreamHandler(self.log)
        for name in ("transformers", "peft"):
            logging.getLogger(name).addHandler(self.handler)
            logging.getLogger(name).setLevel(logging.WARNING)
        self.caught = warnings.catch_warnings(record=True)
        self.seen = self.caught.__enter__()
        warnings.simplefilter("always")
        return self

    def __exit__(self, kind, value, trace):
        self.caught.__exit__(None, None, None)
        for name in ("transformers", "peft"):
            logging.getLogger(name).removeHandler(self.handler)
        said = [str(w.message) for w in self.seen if w.category is not DeprecationWarning]
        said += self.log.getvalue().splitlines()
        odd = [
            s for s in said if s.strip() and not HARMLESS.search(s) and not self.expect.search(s)
        ]
        if odd and kind is None:
            raise Failed(f"{self.what}: the peer warned: " + " | ".join(odd))
        return False


def load_hf(report, folder, dtype=torch.float32):
    """A causal model in float32 unless said; every weight found, none left over, no warning."""
    with Peers(f"loading {folder}"):
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, output_loading_info=True, attn_implementation="eager"
        )
    for field in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        report.check(not info.get(field), f"{folder}: {field} {info.get(field)}")
    return model.eval()


@torch.no_grad()
def logprobs(model, ids):
    """[T, V] in float64 out of float32 logits; PEFT gives those of prompt tuning's virtual tokens too."""
    logits = model(input_ids=torch.tensor([ids])).logits[0, -len(ids) :]
    return logits.double().log_softmax(-1)


def compare_scores(report, store, rev, model, sequences, top, what, tol=LOGPROB_TOL):
    """Log-probabilities of the sequences and of the `top` best at each position; the largest gap."""
    worst = 0.0
    for ids, got in zip(sequences, store.score(rev, sequences, top), strict=True):
        want = logprobs(model, ids)
        report.check(got["ids"] == ids and got["logprobs"][0] is None, f"{what}: echoes the ids")
        nxt = want[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
        worst = max(worst, report.near(got["logprobs"][1:], nxt, tol, f"{what}: of the text"))
        for at, best in enumerate(got["top"]):
            picked = want[at][torch.tensor([t for t, _ in best])]
            report.check(len({t for t, _ in best}) == top, f"{what}: {top} distinct tokens")
            worst = max(
                worst,
                report.near([p for _, p in best], picked, tol, f"{what}: best at position {at}"),
            )
            report.check(
                picked.min() >= want[at].topk(top).values[-1] - tol,
                f"{what}: these are the best at position {at}",
            )
    return worst


@torch.no_grad()
def greedy(model, ids, stop, count):
    """Greedy continuation without the stop token, and the smallest margin between first and second."""
    ids, margin, cache, feed, new = list(ids), float("inf"), None, list(ids), []
    for _ in range(count):
        out = model(input_ids=torch.tensor([feed]), past_key_values=cache, use_cache=True)
        cache, best = out.past_key_values, out.logits[0, -1].topk(2)
        margin = min(margin, (best.values[0] - best.values[1]).item())
        feed = [best.indices[0].item()]
        if feed[0] in stop:
            break
        new += feed
    return new, margin


def chat_ids(tokenizer, question):
    got = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True
    )
    return got if isinstance(got, list) else got["input_ids"]


def compare_answers(report, store, rev, model, tokenizer, questions, count, what):
    """Greedy answers as text; a near tie may go either way and is counted apart."""
    ties, stop = 0, {model.config.eos_token_id, tokenizer.eos_token_id}
    for question in questions:
        new, margin = greedy(model, chat_ids(tokenizer, question), stop, count)
        want = tokenizer.decode(new, skip_special_tokens=True)
        got = store("run", rev, "--mode", "exact", "-n", count, "-p", question)[:-1]
        if got != want and margin < TIE:
            ties += 1
            continue
        report.check(
            got == want,
            f"{what}: {question!r}: fmstore {got!r}, peer {want!r} (margin {margin:.3g})",
        )
    return ties


def data(args, *parts):
    """A reference file or folder, or None where the data is missing."""
    path = args.data.joinpath(*parts) if args.data else None
    return path if path and path.exists() else None


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def tensor_sha256(t):
    """Of the little-endian bytes."""
    return sha256(t.detach().contiguous().view(torch.uint8).numpy().tobytes())


def questions_of(path, count):
    with open(path, encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    asked = [m["content"] for row in rows for m in row["messages"] if m["role"] == "user"]
    return list(dict.fromkeys(asked))[:count]


def main(doc, body):
    ap = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--program", default=os.environ.get("FMSTORE", "fmstore"), help="env FMSTORE")
    ap.add_argument(
        "--data",
        type=pathlib.Path,
        default=os.environ.get("FM_SHARED_DATA"),
        help="reference data, env FM_SHARED_DATA; without it those parts are skipped",
    )
    ap.add_argument(
        "--gguf",
        default=os.environ.get("FM_SMOLLM2_GGUF"),
        help="SmolLM2-135M-Instruct as GGUF, env FM_SMOLLM2_GGUF; likewise",
    )
    ap.add_argument("--only", default="", help="run the parts whose name holds this")
    args = ap.parse_args()
    program = shutil.which(args.program)
    if not program:
        ap.error(f"no program '{args.program}': --program or FMSTORE")
    warnings.simplefilter("ignore")  # outside of Peers, where they count
    torch.set_num_threads(max(1, (os.cpu_count() or 2)))
    report, skipped = Report(), 0
    with tempfile.TemporaryDirectory(prefix="fm-peer-") as tmp:
        for name, part in body:
            if args.only not in name:
                continue
            folder = pathlib.Path(tmp, name)
            folder.mkdir()
            try:
                told = part(
                    report, Store(os.path.abspath(program), str(folder / "repo")), folder, args
                )
            except Failed as e:
                sys.exit(f"FAILED: {name}: {e}")
            skipped += told is None
            print(f"{name}: {told or 'skipped, its data is missing'}", flush=True)
            shutil.rmtree(folder)
    print(
        f"{report.count} checks passed, {skipped} parts skipped; transformers {transformers.__version__}, "
        f"torch {torch.__version__}"
    )
