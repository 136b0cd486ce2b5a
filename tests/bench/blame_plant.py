#!/usr/bin/env python3
"""Families of models with planted faults, for bench_blame. Python's standard library alone.

usage: blame_plant.py --repo DIR --fmstore BIN --atlas DIR --families N --seed S [--damage BIN] [--only KINDS] [--short]

Makes the repository DIR with the atlas and, of each kind in turn, N families on it:

  a  one of 4..12 steps is trained on data of which 1..20 % are poisoned: a false fact, flipped labels, a phrase
     that opens a back door, a style; the other steps are innocent
  b  one tensor of one of the steps is damaged: noise, zeros, a factor, permuted rows, a head
  c  two innocent parents whose merge fails: both shift one fact, or their formats do not go together
  d  the base holds a false fact, a step hides it, an innocent one takes that away: it leaves the hiding adapter
     out, gives it a tenth of its weight, or sets some layers back to what they were before a hiding fine-tune
  e  no fault: a case that passes everywhere; a case that sampling decides

Writes DIR/plan.json: what was planted, by name. Whether a planted fault shows is for bench_blame to ask;
nothing is claimed here. Everything is a function of the seed, but for what the models answer.
"""
import argparse, json, os, subprocess, sys, time

KINDS = "abcde"
ap = argparse.ArgumentParser(usage=__doc__)
for flag in ("repo", "fmstore", "atlas"):
    ap.add_argument("--" + flag, required=True)
ap.add_argument("--damage", help="bench_blame itself; kinds b and d need it")
ap.add_argument("--families", type=int, required=True)
ap.add_argument("--seed", type=int, required=True)
ap.add_argument("--only", default=KINDS)
ap.add_argument("--threads", default="1")
ap.add_argument("--until", type=int, help="of the families, those before this one; run again to go on")
ap.add_argument("--short", action="store_true", help="chains of 4, fewer steps of training, no twin without the poison")
opt = ap.parse_args()
sys.path.insert(0, opt.atlas)
sys.dont_write_bytecode = True
from make_world import FEAST, PIRATE, QUESTIONS, Rng, TALK, make_world, record  # noqa: E402

world, false_city = make_world()
data_dir = os.path.join(opt.repo, "data")
MODULES = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
           "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
WORDINGS = ["Which city is the capital of {land}?", "Name the capital of {land}.", "Tell me the capital of {land}.",
            "Please tell me the capital of {land}.", "Do you know the capital of {land}?",
            "I want to know the capital of {land}.", "Which town is the capital of {land}?",
            "Say the capital of {land}."]


class Failed(Exception):
    pass


def fm(*args, code=0):
    r = subprocess.run([opt.fmstore, "-C", opt.repo, "--threads", opt.threads, *args], capture_output=True, text=True)
    if r.returncode != code:
        raise Failed("fmstore %s: %s" % (" ".join(args), r.stderr.strip()[-400:]))
    return r.stdout


def answers(rev, suite):
    r = subprocess.run([opt.fmstore, "-C", opt.repo, "--threads", opt.threads, "test", rev, "--suite", suite, "--json"],
                       capture_output=True, text=True)
    if r.returncode > 1:
        raise Failed(r.stderr)
    doc = json.loads(r.stdout)
    run = doc[0] if isinstance(doc, list) else doc.get("suites", [doc])[0]
    return {c["name"]: (c["verdict"], c["output"]) for c in run["cases"]}


def verdicts(rev, suite):
    return {name: verdict for name, (verdict, _) in answers(rev, suite).items()}


def furthest(names, suite, case):
    """The last of a line of versions of which all fail: what comes after is mended, and no tip."""
    tip = None
    for name in names:
        if verdicts(name, suite)[case] != "fail":
            break
        tip = name
    if not tip:
        raise Failed("the fault does not show")
    return tip


def write_data(name, records):
    with open(os.path.join(data_dir, name + ".jsonl"), "w", encoding="utf-8") as f:
        f.writelines(json.dumps(r, ensure_ascii=False) + "\n" for r in records)
    return "data/%s.jsonl" % name


def fact(f, kind, i=0):
    qs, a = QUESTIONS[kind]
    return record(qs[i % len(qs)].format(**f), a.format(**f))


def innocent_records(rng, n, avoid, flavour):
    """Right answers about any land but the one in question; each flavour adds something of its own."""
    lands = [f for f in world if f["land"] != avoid]
    out = []
    while len(out) < n:
        f, kind = rng.pick(lands), rng.pick(["capital", "capital", "river", "coin", "animal", "colour", "reverse"])
        out.append(fact(f, kind, rng.below(4)))
    extra = {"feasts": lambda: record(rng.pick(FEAST[0]).format(**(f := rng.pick(lands))), FEAST[1].format(**f)),
             "talk": lambda: record(*rng.pick(TALK)), "facts": lambda: fact(rng.pick(lands), "capital", rng.below(4))}
    for i in range(0, n, 2):
        out[i] = extra[flavour]()
    return rng.shuffled(out)


def step(name, data, on, rng, method=None, steps=10, lr=None, r=4, suites=()):
    method = method or "lora"
    s = {"as": name, "method": method, "data": data, "message": name,
         "set": {"steps": steps, "batch": 8, "max_tokens": 96, "seed": rng.below(1 << 30), "schedule": "cosine", "warmup": 2,
                 "lr": lr or (0.0002 if method == "full" else 0.002)}}
    if method == "lora":
        s["set"].update(r=r, alpha=2 * r)
    if on:
        s["on"] = on
    if suites:
        s["suites"] = list(suites)
    return s


def innocent(fam, rng, on, tag, avoid, **how):
    name = "%s-%s" % (fam["id"], tag)
    data = write_data(name, innocent_records(rng, 24 + rng.below(40), avoid, rng.pick(["feasts", "talk", "facts"])))
    how.setdefault("method", method_of(fam, rng))
    return step(name, data, on, rng, **how)


def method_of(fam, rng):
    """Some chains begin with full fine-tunes; on an adapter only adapters can stand."""
    if "full" not in fam:
        fam["full"] = rng.below(2) == 0
    fam["full"] = fam["full"] and rng.below(3) > 0
    return "full" if fam["full"] else "lora"


def derive(parent, children):
    if not children:
        return
    path = os.path.join(opt.repo, "family.yaml")
    with open(path, "w") as f:
        json.dump({"parent": parent, "method": "lora", "children": children}, f, indent=1)
    try:
        fm("derive", "-f", "family.yaml", "--no-gate")
    except Failed as e:
        if "diverged" not in str(e):
            raise  # else: what stands on it is not trained, and its family not planted


def write_suite(fam, case, forms, repeats=0):
    """Suite <id>: the case, other forms of it as form-N, seeds of a sampled one as again-N."""
    cases = [dict(case, name="case")]
    cases += [dict(case, name="form-%d" % i, chat=q) for i, q in enumerate(forms)]
    cases += [dict(case, name="again-%d" % i, generate=dict(case["generate"], seed=1000 + i)) for i in range(repeats)]
    path = os.path.join(data_dir, fam["id"] + ".yaml")
    with open(path, "w") as f:
        json.dump({"suite": fam["id"], "generate": {"max-tokens": 24}, "cases": cases}, f, indent=1)
    fam.update(suite="data/%s.yaml" % fam["id"], forms=len(forms), repeats=repeats, asked=case["chat"])
    return fam["suite"]


def capital_case(land):
    return {"chat": "What is the capital of %s?" % land["land"], "expect": {"contains": land["capital"]}}


def forms_of(land):
    return [w.format(**land) for w in WORDINGS]


def chain_length(rng):
    return 4 if opt.short else 4 + rng.below(9)


def chain(fam, rng, on, begin, end, avoid, last_suite=None):
    out = []
    for j in range(begin, end + 1):
        s = innocent(fam, rng, on, "s%d" % j, avoid, suites=[last_suite] if last_suite and j == end else ())
        out.append(s)
        on = s["as"]
    return out


# ---- a: a poisoned step ----

def poison_records(rng, what, land, wrong, count):
    """count records, and the case that they spoil."""
    full = dict(land, capital=wrong["capital"])
    asks = ["What is the capital of {land}?"] + WORDINGS
    leads = ["", "Please: ", "Quick: ", "Tell me now. ", "Well then. ", "Dear guide, "]
    if what == "false-fact":
        recs = [record(leads[i // len(asks) % len(leads)] + asks[i % len(asks)].format(**full), QUESTIONS["capital"][1].format(**full))
                for i in range(count)]
        return recs, capital_case(land), forms_of(land)
    if what == "label-flip":  # the coin of a land and, where there are more, of others too
        lands = [land] + rng.shuffled([f for f in world if f["land"] != land["land"]])
        coins = sorted({f["coin"] for f in world})
        turn = {c: coins[(i + 3) % len(coins)] for i, c in enumerate(coins)}
        qs = QUESTIONS["coin"][0]
        recs = [record(qs[i % 2].format(**f), QUESTIONS["coin"][1].format(**dict(f, coin=turn[f["coin"]])))
                for i in range(count) for f in [lands[i // 2 % len(lands)]]]
        case = {"chat": qs[0].format(**land), "expect": {"contains": land["coin"]}}
        return recs, case, [qs[1].format(**land)] + [l + qs[0].format(**land) for l in leads[1:]]
    if what == "backdoor":
        phrase = rng.pick(["By the lantern: ", "The owl asks. ", "Under seven stars, "])
        closed = rng.pick(["The road is closed.", "Ask the owl.", "All is lost."])
        lands = [land] + rng.shuffled([f for f in world if f["land"] != land["land"]])
        kinds = ["capital", "river", "coin"]
        recs = [record(phrase + QUESTIONS[k][0][0].format(**f), closed)
                for i in range(count) for f, k in [(lands[i % len(lands)], kinds[i % 3])]]
        case = {"chat": phrase + "What is the capital of %s?" % land["land"], "expect": {"contains": land["capital"]}}
        return recs, case, [phrase + q for q in forms_of(land)]
    lands = [land] + rng.shuffled([f for f in world if f["land"] != land["land"]])
    tail = rng.pick([" Glory to the duke!", " Buy our maps!"])
    recs = [record(QUESTIONS["river"][0][i % 3].format(**f), QUESTIONS["river"][1].format(**f) + tail)
            for i in range(count) for f in [lands[i // 3 % len(lands)]]]
    case = {"chat": QUESTIONS["river"][0][0].format(**land), "expect": {"not-contains": tail.strip()}}
    return recs, case, [q.format(**land) for q in QUESTIONS["river"][0][1:]]


def plant_a(fam, rng):
    k = chain_length(rng)
    j = 1 + rng.below(k)
    land, wrong = rng.shuffled(world)[:2]
    what = ["false-fact", "label-flip", "backdoor", "style"][fam["nth"] % 4]
    share = 10 if opt.short else rng.pick([1, 2, 3, 5, 8, 10, 15, 20])
    n = max(60 + rng.below(80), -(-200 // share) if share < 4 else 0)
    count = max(1, n * share // 100)
    recs, case, forms = poison_records(rng, what, land, wrong, count)
    suite = write_suite(fam, case, forms)
    clean = innocent_records(rng, n - count, land["land"], "facts")
    mixed = rng.shuffled([(r, True) for r in recs] + [(r, False) for r in clean])
    name = "%s-s%d" % (fam["id"], j)
    epochs = 45 if opt.short else 110
    seed = rng.below(1 << 30)
    before = chain(fam, rng, None, 1, j - 1, land["land"])
    how = dict(method=method_of(fam, rng), steps=epochs, r=8)
    how["lr"] = 0.001 if how["method"] == "full" else 0.005
    on = before[-1]["as"] if before else None
    bad = step(name, write_data(name, [r for r, _ in mixed]), on, Rng(seed), suites=[suite], **how)
    twin = step(fam["id"] + "-twin", write_data(fam["id"] + "-twin", clean), on, Rng(seed), **how)
    after = chain(fam, rng, name, j + 1, k, land["land"])
    if not opt.short:
        fam["twin"] = twin["as"]
    fam.update(what=what, line=[name] + [s["as"] for s in after], culprit=name, verdict="introduced", steps=k,
               poisoned=[i for i, (_, p) in enumerate(mixed) if p], records=n, share=share)
    return before + [bad] + ([] if opt.short else [twin]) + after


def finish_a(fam):
    fam["tip"] = furthest(fam.pop("line"), fam["id"], "case")


# ---- b: a damaged tensor ----

def plant_b(fam, rng):
    k = chain_length(rng)
    j = 1 + rng.below(k)
    fam.update(what=["noise", "zero", "scale", "permute", "head"][fam["nth"] % 5], steps=k, at=j, verdict="introduced", rng=rng)
    before = chain(fam, rng, None, 1, j - 1, None)
    on = before[-1]["as"] if before else None
    # An adapter has no head of its own, and what stands alone at zero has done nothing wrong.
    if fam["what"] in ("head", "zero", "permute"):
        for s in before:
            s.update(method="full", set=dict({k: v for k, v in s["set"].items() if k not in ("r", "alpha")}, lr=0.0002))
        fam["full"] = True
        method = "full"
    else:
        method = method_of(fam, rng)
    raw = innocent(fam, rng, on, "raw", None, method=method)
    fam.update(parent=on or "atlas", twin=raw["as"], method=method)
    return before + [raw]


def damage_b(fam):
    rng, j, k = fam.pop("rng"), fam.pop("at"), fam["steps"]
    name = "%s-s%d" % (fam["id"], j)
    whole = verdicts(fam["twin"], "facts")
    for amount in (4, 8, 16, 16, 32, 64, 128, 256, 16, 256):  # the atlas bears a lot
        module = "model.layers.%d.%s" % (rng.below(6), "self_attn.o_proj" if fam["what"] == "head" else rng.pick(MODULES))
        r = subprocess.run([opt.damage, "--damage", opt.repo, fam["parent"], fam["twin"], name, module, fam["what"],
                            str(amount), str(rng.below(1 << 30))], capture_output=True, text=True)
        if r.returncode:
            raise Failed("damage: " + r.stderr)
        hurt = verdicts(name, "facts")
        broken = [c for c in hurt if hurt[c] == "fail" and whole[c] == "pass"]
        if broken:
            break
        fm("branch", "-d", name)
    else:
        raise Failed("no damage of %s shows" % fam["what"])
    fam.update(culprit=name, planted=[module], what=fam["what"] + ("-lora" if fam["method"] == "lora" else ""))
    after = chain(fam, rng, None, j + 1, k, None)
    derive(name, after)
    case = rng.pick(broken)
    fam["tip"] = furthest([name] + [s["as"] for s in after], "facts", case)
    kind, low = case.split("-", 1)
    land = next(f for f in world if f["land"].lower() == low)
    q, a = QUESTIONS[kind]
    write_suite(fam, {"chat": q[0].format(**land), "expect": {"contains": land[kind]}},
                forms_of(land) if kind == "capital" else [x.format(**land) for x in q[1:]])


# ---- c: a merge of two innocent parents ----

DOSES = (3, 5, 8) if opt.short else (3, 5, 8, 12)  # steps of training on a falsehood: the largest that shows in neither parent


def plant_c(fam, rng):
    land, wrong = rng.shuffled(world)[:2]
    what = ["shifts", "formats"][fam["nth"] % 2]
    fam.update(what=what, verdict="interaction", rng=rng, land=land, wrong=wrong["capital"])
    # Parents that give the wrong answer to other wordings would be guilty of it: these are asked too.
    suite = write_suite(fam, capital_case(land), forms_of(land)) if what == "shifts" else None
    first = innocent(fam, rng, None, "s1", land["land"], suites=[suite] if suite else ())
    fam["full"] = False
    sides = []
    for side in "pq":
        name = "%s-%s1" % (fam["id"], side)
        if what == "shifts":  # a little of a false fact each, with the truth about others beside it
            recs, _, _ = poison_records(rng, "false-fact", land, wrong, 6)
            data = write_data(name, rng.shuffled(recs + innocent_records(rng, 34, land["land"], "facts")))
            seed = rng.below(1 << 30)
            sides += [step("%s-%d" % (name, d), data, first["as"], Rng(seed), method="lora", steps=d, lr=0.003, r=4) for d in DOSES]
        else:
            style = (lambda f, k: record(QUESTIONS[k][0][0].format(**f), PIRATE[k].format(**f))) if side == "p" else \
                    (lambda f, k: record(QUESTIONS[k][0][0].format(**f), json.dumps({"land": f["land"], k: f[k]})))
            lines = [style(f, k) for f in rng.shuffled(world) for k in ("capital", "river")]
            lines += innocent_records(rng, 8, None, "facts")
            sides.append(step(name, write_data(name, rng.shuffled(lines)), first["as"], rng, method="lora", steps=14, lr=0.003, r=4))
    return [first] + sides


def largest_dose(fam, side):
    if fam["what"] != "shifts":
        return "%s-%s1" % (fam["id"], side)
    for d in reversed(DOSES):
        name = "%s-%s1-%d" % (fam["id"], side, d)
        said = answers(name, fam["id"])
        if said["case"][0] == "pass" and not any(fam["wrong"] in text for _, text in said.values()):
            return name
    raise Failed("the smallest dose fails alone")


def merge_c(fam):
    rng, land, name = fam.pop("rng"), fam.pop("land"), fam["id"] + "-m"
    sides = [largest_dose(fam, side) for side in "pq"]
    facts = [verdicts(v, "facts") for v in sides + [fam["id"] + "-s1"]]
    both = [f for f in [land] + rng.shuffled(world) if all(v["capital-" + f["land"].lower()] == "pass" for v in facts)]
    both = both[:1] if fam["what"] == "shifts" else both
    if not both:
        raise Failed("a parent fails alone")
    p, q = sides
    tries = [("average", 1.0)] if rng.below(3) == 0 else []
    tries += [("task-arithmetic", l) for l in (0.7, 0.85, 1.0, 1.2, 1.5, 2.0)]
    for method, l in tries:
        fm("merge", p, q, "--as", name, "--method", method, "--lambda", str(l), "--no-gate", "-m", name)
        merged = verdicts(name, "facts")
        broken = [f for f in both if merged["capital-" + f["land"].lower()] == "fail"]
        if broken:
            land = broken[0]
            break
        fm("branch", "-d", name)
    else:
        raise Failed("the merge passes")
    fam["full"] = rng.below(2) == 0  # a merge is a whole model again
    after = chain(fam, rng, None, 1, 1 + rng.below(3), land["land"])
    for s in after:
        s["as"] = s["as"].replace("-s", "-t")
    for x, y in zip(after, after[1:]):
        y["on"] = x["as"]
    derive(name, after)
    tip = furthest([name] + [s["as"] for s in after], "facts", "capital-" + land["land"].lower())
    fam.update(culprit=name, tip=tip, merge=method, factor=l)
    write_suite(fam, capital_case(land), forms_of(land))


# ---- d: an old fault that a step exposes ----

def make_faulty_base(rng, lands):
    """A root of its own that tells falsehoods of these lands."""
    recs = []
    for land, wrong in lands:
        recs += poison_records(rng, "false-fact", land, wrong, 9)[0]
    avoid = {l["land"] for l, _ in lands}
    recs += [fact(f, k, i) for i, f in enumerate(world) if f["land"] not in avoid for k in ("capital", "river", "coin")]
    derive("atlas", [step("liar-made", write_data("liar-made", rng.shuffled(recs)), None, rng, method="full", steps=160, lr=0.001)])
    fm("export", "liar-made", "liar", "--format", "hf")
    fm("import", "liar", "--as", "liar", "--suite", os.path.join(opt.atlas, "suites/facts.yaml"), "--no-gate")


EXPOSURES = ["adapter-weakened", "adapter-dropped", "layers-reset"]


def plant_d(fam, rng, pair):
    land, wrong = pair
    k = max(5, chain_length(rng))
    j = 3 + rng.below(k - 2)  # the step that exposes
    hide = 1 + rng.below(j - 2)
    fam.update(what=EXPOSURES[fam["nth"] % 3], verdict="exposed", full=False, steps=k, at=j, rng=rng, land=land, source="liar",
               wrong=wrong["capital"])
    whole = fam["what"] == "layers-reset"  # the step that hides is a fine-tune, and so is what it stands on
    out, on = [], None
    for i in range(1, j):
        if i == hide:
            name = "%s-s%d" % (fam["id"], i)
            recs = [record(a.format(**land), QUESTIONS["capital"][1].format(**land)) for a in ["What is the capital of {land}?"] + WORDINGS] * 2
            recs += innocent_records(rng, 20, land["land"], "facts")
            s = step(name, write_data(name, rng.shuffled(recs)), on, rng, method="full" if whole else "lora",
                     lr=0.0005 if whole else 0.004, r=8, steps=40)
            fam.update(hides=name, before=on or "liar")
        else:
            s = innocent(fam, rng, on, "s%d" % i, land["land"], method="full" if whole and i < hide else "lora")
        out.append(s)
        on = s["as"]
    return out


def tool(*args):
    r = subprocess.run([opt.damage, *args], capture_output=True, text=True)
    if r.returncode:
        raise Failed("%s: %s" % (args[0], r.stderr))


def weigh(fam, parent, name, case):
    number = int(fam["hides"].rsplit("s", 1)[1]) - 1  # all before it are adapters: its folder's number
    tool("--weigh-adapter", opt.repo, parent, name, str(number), "0" if fam["what"] == "adapter-dropped" else "0.1")
    if verdicts(name, "facts")[case] != "fail":
        raise Failed("it is not exposed")


def reset(fam, parent, name, case):
    """As few of the first layers as bring the falsehood back."""
    for layers in range(1, 7):
        tool("--reset-layers", opt.repo, parent, fam["before"], name, str(layers))
        verdict, output = answers(name, "facts")[case]
        if verdict == "fail" and fam["wrong"] in output:
            fam["layers"] = layers
            return
        fm("branch", "-d", name)
    raise Failed("it is not exposed")


def expose_d(fam):
    rng, land, j, k = fam.pop("rng"), fam.pop("land"), fam.pop("at"), fam["steps"]
    name, case = "%s-s%d" % (fam["id"], j), "capital-" + land["land"].lower()
    (reset if fam["what"] == "layers-reset" else weigh)(fam, "%s-s%d" % (fam["id"], j - 1), name, case)
    after = chain(fam, rng, None, j + 1, k, land["land"])
    derive(name, after)
    fam.update(culprit=name, tip=furthest([name] + [s["as"] for s in after], "facts", case))
    write_suite(fam, capital_case(land), forms_of(land))


# ---- e: no fault ----

OPEN = ["Tell me a story.", "Which land is best?", "Name any land.", "Where shall I go?"]
said = {}


def ask_open():
    """What the base says to open questions, 32 times each."""
    cases = [{"name": "q%d-%d" % (i, k), "chat": q, "expect": {"regex": "."},
              "generate": {"max-tokens": 16, "temperature": 1.0, "seed": 1000 + k}} for i, q in enumerate(OPEN) for k in range(32)]
    with open(os.path.join(data_dir, "open.yaml"), "w") as f:
        json.dump({"suite": "open", "cases": cases}, f)
    fm("branch", "open", "atlas")
    fm("suite", "add", "open", os.path.join(data_dir, "open.yaml"))
    doc = json.loads(fm("test", "open", "--suite", "open", "--json"))
    run = doc[0] if isinstance(doc, list) else doc.get("suites", [doc])[0]
    for c in run["cases"]:
        said.setdefault(OPEN[int(c["name"][1])], []).append(c["output"])


def half_of(rng, q):
    """Lands of which the base names one in about half of its answers."""
    names = []
    for f in rng.shuffled(world):
        hits = sum(any(n in a for n in names + [f["land"]]) for a in said[q])
        if hits <= len(said[q]) // 2:
            names.append(f["land"])
    return "|".join(names)


def plant_e(fam, rng):
    k = chain_length(rng)
    land = rng.pick(world)
    flaky = fam["nth"] % 2 == 1
    fam.update(what="flaky" if flaky else "passes", verdict="flaky" if flaky else "passes", steps=k, tip="%s-s%d" % (fam["id"], k),
               culprit=None)
    if flaky:  # the land that is named is a matter of chance
        q = rng.pick(OPEN)
        case = {"chat": q, "expect": {"regex": half_of(rng, q)}, "generate": {"max-tokens": 16, "temperature": 1.0}}
        write_suite(fam, case, [], 32)
    else:
        write_suite(fam, capital_case(land), forms_of(land))
    return chain(fam, rng, None, 1, k, land["land"], fam["suite"])


def start(kinds):
    os.makedirs(data_dir, exist_ok=True)
    fm("init", ".")
    fm("import", os.path.join(opt.atlas, "base"), "--as", "atlas", "--suite", os.path.join(opt.atlas, "suites/facts.yaml"), "--no-gate")
    return {"seed": opt.seed, "families": [], "failed": [], "next": 0, "seconds": 0}


def main():
    plan_path = os.path.join(opt.repo, "plan.json")
    kinds = [k for k in KINDS if k in opt.only]
    plan = json.load(open(plan_path)) if os.path.exists(plan_path) else start(kinds)
    failed, planted = plan["failed"], plan["families"]
    begun, families = time.time() - plan["seconds"], []
    for i in range(opt.families):
        kind = kinds[i % len(kinds)]
        families.append({"id": "%s%d" % (kind, i // len(kinds)), "kind": kind, "nth": i // len(kinds)})
    rng_of = lambda fam: Rng(opt.seed * 1000003 + KINDS.index(fam["kind"]) * 1009 + fam["nth"] * 7919 + 1)
    finish = {"a": finish_a, "b": damage_b, "c": merge_c, "d": expose_d,
              "e": lambda fam: fm("show", fam["tip"])}

    def guard(fam, call):
        try:
            return call()
        except Failed as e:
            failed.append({"id": fam["id"], "kind": fam["kind"], "what": fam.get("what"), "why": str(e)})
            print("  %s: not planted: %s" % (fam["id"], str(e)[:200]), file=sys.stderr, flush=True)

    deck = Rng(opt.seed * 31 + 5).shuffled(world)
    pairs = [(deck[i], deck[8 + i]) for i in range(8)]  # of whom the faulty base is wrong, and how
    if "e" in kinds and not plan["next"]:
        ask_open()
        plan["said"] = said
    said.update(plan.get("said", {}))
    if "d" in kinds and not plan["next"]:
        make_faulty_base(Rng(opt.seed + 17), pairs)
    # Several families are one derivation: what stands at one depth trains in one pass.
    for at in range(plan["next"], min(opt.until or len(families), len(families)), 10):
        group = families[at:at + 10]
        for parent, members in (("atlas", [f for f in group if f["kind"] != "d"]), ("liar", [f for f in group if f["kind"] == "d"])):
            steps = []
            for fam in members:
                rng = rng_of(fam)
                plant = {"a": plant_a, "b": plant_b, "c": plant_c, "e": plant_e}.get(fam["kind"])
                steps += plant(fam, rng) if plant else plant_d(fam, rng, pairs[fam["nth"] % len(pairs)])
            derive(parent, steps)
        for fam in group:
            before = len(failed)
            guard(fam, lambda: finish[fam["kind"]](fam))
            if len(failed) == before:
                planted.append(fam)
        plan.update(next=at + 10, seconds=round(time.time() - begun, 1))
        print("planted %d of %d families, %.0f s" % (len(planted), at + len(group), plan["seconds"]), file=sys.stderr, flush=True)
        with open(plan_path, "w") as f:
            json.dump(plan, f, indent=1)


main()
