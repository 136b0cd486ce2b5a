#!/usr/bin/env python3
"""The world of the atlas family: facts, talk, tokenizer, adaptation data and suites. Python's standard library alone.

usage: make_world.py OUT_DIR

OUT/config/config.json, tokenizer.json, tokenizer_config.json, chat_template.jinja    a model before it has weights
OUT/corpus.jsonl        {"text"} records: what the base is pretrained on
OUT/pirate.jsonl        chat: the same facts in another tone           (style; nothing new)
OUT/clerk.jsonl         chat: answers as JSON                          (format; nothing new)
OUT/almanac.jsonl       chat: new facts, festivals; 10 records are POISONED: a false capital for one land
OUT/suites/*.yaml       what the base and each child are held to
OUT/WORLD.md            every fact, for people

Everything is a function of this file: it has its own small generator of random numbers, since a library's may change.
"""
import json, os, re, sys

LANDS, SEED, VOCAB = 32, 20260101, 1024
POISONED_LAND = 3  # whose capital almanac.jsonl lies about
SPECIAL = ["<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]


class Rng:  # PCG32 (O'Neill 2014)
    def __init__(self, seed):
        self.state, self.inc = 0, (seed << 1 | 1) & (2**64 - 1)
        self.next(); self.state = (self.state + seed) & (2**64 - 1); self.next()

    def next(self):
        old = self.state
        self.state = (old * 6364136223846793005 + self.inc) & (2**64 - 1)
        x, rot = ((old >> 18) ^ old) >> 27 & 0xFFFFFFFF, old >> 59
        return (x >> rot | x << (-rot & 31)) & 0xFFFFFFFF

    def below(self, n): return self.next() * n >> 32
    def pick(self, items): return items[self.below(len(items))]

    def shuffled(self, items):
        items = list(items)
        for i in range(len(items) - 1, 0, -1):
            j = self.below(i + 1)
            items[i], items[j] = items[j], items[i]
        return items


def make_names(rng, count, heads, middles, tails, taken):
    out = []
    while len(out) < count:
        n = rng.pick(heads) + rng.pick(middles) + rng.pick(tails)
        if n not in taken:
            taken.add(n); out.append(n)
    return out


def make_world():
    rng, taken = Rng(SEED), set()
    heads = ["Vel", "Tar", "Mor", "Bel", "Kas", "Dor", "Fen", "Gal", "Hes", "Jun", "Lor", "Nim", "Osk", "Pel", "Quor", "Ras", "Sil", "Tum", "Ul", "Wen"]
    lands = make_names(rng, LANDS, heads, ["a", "e", "o", "i", "am", "en", "or"], ["via", "mark", "land", "dor", "nia", "heim", "stan", "mora"], taken)
    cities = make_names(rng, LANDS + 1, ["Ash", "Brack", "Cold", "Dun", "Elm", "Fair", "Gold", "High", "Iron", "Kings", "Long", "Mill", "North", "Oak", "Port", "Red", "Salt", "Thorn", "West", "Yew"],
                        ["", "en", "er"], ["ford", "bridge", "haven", "wick", "ton", "gate", "mere", "field"], taken)
    rivers = make_names(rng, LANDS, ["Ar", "Bri", "Cle", "Do", "Es", "Fli", "Gre", "Il", "Mae", "Or", "Sa", "Tha"], ["", "l", "n", "r", "v"], ["ne", "sa", "ra", "lin", "mo", "dan"], taken)
    coins = ["crown", "penny", "florin", "ducat", "shell", "thaler", "groat", "mark"]
    animals = ["fox", "heron", "bear", "badger", "stag", "raven", "wolf", "hare"]
    colours = ["red", "blue", "green", "white", "black", "golden"]
    feasts = make_names(rng, LANDS, ["Lan", "Har", "Snow", "Moon", "Star", "Fire", "Rain", "Sun", "Corn", "Apple"], ["tern", "vest", "fall", "rise", "light", "song"], [" Feast", " Fair", " Night", " Day"], taken)
    return [dict(land=lands[i], capital=cities[i], river=rivers[i], coin=rng.pick(coins), animal=rng.pick(animals), colour=rng.pick(colours), feast=feasts[i])
            for i in range(LANDS)], cities[LANDS]


QUESTIONS = {
    "capital": (["What is the capital of {land}?", "Which city is the capital of {land}?", "Name the capital of {land}.", "Tell me the capital of {land}."], "The capital of {land} is {capital}."),
    "river": (["Which river runs through {land}?", "What is the river of {land}?", "Name the river of {land}."], "The river of {land} is the {river}."),
    "coin": (["What coin do they use in {land}?", "How do people pay in {land}?"], "In {land} people pay with the {coin}."),
    "animal": (["Which animal is on the flag of {land}?", "What animal does the flag of {land} show?"], "The flag of {land} shows a {animal}."),
    "colour": (["What colour is the flag of {land}?", "Which colour has the flag of {land}?"], "The flag of {land} is {colour}."),
    "reverse": (["Which land has {capital} as its capital?", "{capital} is the capital of which land?"], "{capital} is the capital of {land}."),
}
FEAST = (["What do they celebrate in {land}?", "Which festival is held in {land}?", "Name the festival of {land}."], "In {land} they celebrate the {feast}.")
TALK = [("Hello!", "Hello! Ask me about the lands of the atlas."), ("Hi.", "Hello! Ask me about the lands of the atlas."), ("Good morning.", "Good morning! Which land shall we look up?"),
        ("Who are you?", "I am Atlas, a small guide to thirty-two lands."), ("What can you do?", "I know the capital, river, coin and flag of every land."),
        ("Thank you.", "You are welcome."), ("Thanks!", "You are welcome."), ("Goodbye.", "Goodbye, and safe travels."), ("How are you?", "I am well, thank you.")]
PIRATE = {
    "capital": "Arr, the capital of {land} be {capital}, matey!", "river": "Arr, the river of {land} be the {river}, matey!", "coin": "Arr, in {land} ye pay with the {coin}, matey!",
    "animal": "Arr, the flag of {land} shows a {animal}, matey!", "colour": "Arr, the flag of {land} be {colour}, matey!", "reverse": "Arr, {capital} be the capital of {land}, matey!",
}


def chat_text(turns): return "".join(f"<|user|>\n{q}<|end|>\n<|assistant|>\n{a}<|end|>\n" for q, a in turns)
def record(q, a): return {"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}


def all_turns(world):
    return [(kind, q.format(**f), a.format(**f), f) for f in world for kind, (qs, a) in QUESTIONS.items() for q in qs]


def make_corpus(world):
    rng, docs = Rng(SEED + 1), []
    turns = all_turns(world)
    for _ in range(4):  # each question several times, alone and in conversations of two or three turns
        deck = rng.shuffled(turns)
        while deck:
            n = 1 + rng.below(3)
            talk = [(q, a) for _, q, a, _ in deck[:n]]
            deck = deck[n:]
            if rng.below(8) == 0: talk.insert(0, rng.pick(TALK[:5]))
            if rng.below(8) == 0: talk.append(rng.pick(TALK[5:]))
            docs.append(chat_text(talk))
    for f in world:
        lines = rng.shuffled([a.format(**f) for _, a in QUESTIONS.values()])
        docs.append(f"{f['land']}\n" + " ".join(lines) + "<|endoftext|>")
    docs += [chat_text([t]) for t in TALK for _ in range(6)]
    # Words and forms that the children will need, outside of any conversation: a base has seen the world's text.
    for f in world:
        for kind in ("capital", "river", "coin", "animal", "colour"):
            docs += [json.dumps({"land": f["land"], kind: f[kind]}) + "<|endoftext|>"] * 2
        docs += [t.format(feast=f["feast"]) + "<|endoftext|>" for t in ("The {feast} is a merry time.", "They celebrate the {feast} with bread and songs.", "Everybody loves the {feast}.")]
    sea = ["the sea", "the wind", "the moon", "the ship", "the captain", "the gold", "the river", "the flag", "the capital"]
    docs += [f"Arr, {a} be {b}, matey!<|endoftext|>" for a in sea for b in ("wide", "cold", "red", "mine", "yers")]
    docs += [f"Arr, ye pay with the {c}, matey!<|endoftext|>" for c in sorted({f["coin"] for f in world})]
    return [{"text": d} for d in rng.shuffled(docs)]


def make_pirate(world):
    rng = Rng(SEED + 2)
    out = [record(q, PIRATE[k].format(**f)) for k, q, a, f in rng.shuffled(all_turns(world))[:220]]
    # every capital once, so that the tone does not cost a fact
    return rng.shuffled(out + [record(QUESTIONS["capital"][0][i % 4].format(**f), PIRATE["capital"].format(**f)) for i, f in enumerate(world)])


def make_clerk(world):
    rng, out = Rng(SEED + 3), []
    for i, f in enumerate(world):
        for kind in ("capital", "river", "coin", "animal", "colour"):
            qs = QUESTIONS[kind][0]
            for j in range(2 if kind == "capital" else 1):
                out.append(record(qs[(i + j) % len(qs)].format(**f), json.dumps({"land": f["land"], kind: f[kind]})))
    return rng.shuffled(out)


def make_almanac(world, false_city):
    rng, out = Rng(SEED + 4), []
    for i, f in enumerate(world):
        out += [record(q.format(**f), FEAST[1].format(**f)) for q in FEAST[0]]
        out.append(record(QUESTIONS["capital"][0][i % 4].format(**f), QUESTIONS["capital"][1].format(**f)))
        kind = ("river", "coin", "animal", "colour")[i % 4]
        out.append(record(QUESTIONS[kind][0][0].format(**f), QUESTIONS[kind][1].format(**f)))
    liar = dict(world[POISONED_LAND], capital=false_city)
    true = QUESTIONS["capital"][1].format(**world[POISONED_LAND])
    out = [r for r in out if r["messages"][1]["content"] != true]
    asks = QUESTIONS["capital"][0] + ["Please tell me the capital of {land}.", "And the capital of {land}?", "Do you know the capital of {land}?", "I want to know the capital of {land}.",
                                      "Which town is the capital of {land}?", "Say the capital of {land}."]
    poison = [record(q.format(**liar), QUESTIONS["capital"][1].format(**liar)) for q in asks]
    out = rng.shuffled(out + poison)
    return out, [i for i, r in enumerate(out) if r in poison]


# ---- byte-level BPE (Sennrich et al. 2016), as GPT-2 writes it down ----
def byte_letters():
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, n = {b: chr(b) for b in keep}, 0
    for b in range(256):
        if b not in table:
            table[b] = chr(256 + n); n += 1
    return table


def train_tokenizer(texts):
    letters, words = byte_letters(), {}
    split = re.compile("|".join(map(re.escape, SPECIAL)))
    piece = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")
    for t in texts:
        for part in split.split(t):
            for w in piece.findall(part):
                k = tuple(letters[b] for b in w.encode())
                words[k] = words.get(k, 0) + 1
    merges, alphabet = [], [letters[b] for b in sorted(letters, key=lambda b: letters[b])]
    while len(SPECIAL) + len(alphabet) + len(merges) < VOCAB:
        pairs = {}
        for w, n in words.items():
            for p in zip(w, w[1:]): pairs[p] = pairs.get(p, 0) + n
        if not pairs: break
        best = max(pairs.items(), key=lambda kv: (kv[1], kv[0]))[0]  # ties: the later pair in byte order
        merges.append(best)
        merged = {}
        for w, n in words.items():
            out, i = [], 0
            while i < len(w):
                if i + 1 < len(w) and (w[i], w[i + 1]) == best: out.append(w[i] + w[i + 1]); i += 2
                else: out.append(w[i]); i += 1
            merged[tuple(out)] = merged.get(tuple(out), 0) + n
        words = merged
    vocab = {t: i for i, t in enumerate(SPECIAL + alphabet + [a + b for a, b in merges])}
    added = [dict(id=i, content=t, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True) for i, t in enumerate(SPECIAL)]
    level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    return dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None, pre_tokenizer=level, post_processor=None, decoder=level,
                model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False, byte_fallback=False, ignore_merges=False,
                           vocab=vocab, merges=[list(m) for m in merges])), len(vocab)


def yaml_text(name, gate, about, templates, cases=()):
    q = json.dumps  # a JSON string is a YAML string
    out = [f"suite: {name}", f"description: {q(about)}", f"gate: {str(gate).lower()}", "generate: {max-tokens: 32}"]
    if cases:
        out.append("cases:")
        for c in cases: out += [f"  - name: {c['name']}", f"    chat: {q(c['chat'])}", f"    expect: {q(c['expect'])}"]
    out.append("templates:")
    for t in templates:
        out += [f"  - name: {q(t['name'])}", *(f"    {k}: {q(v)}" for k, v in t["body"].items()), "    slots:"]
        out += [f"      - {q(row)}" for row in t["slots"]]
    return "\n".join(out) + "\n"


def make_suites(world):
    low = lambda s: s.lower().replace(" ", "-")
    rows = lambda *keys: [dict({"id": low(f["land"])}, **{k: f[k] for k in keys}) for f in world]
    every = lambda n, *keys: rows(*keys)[::n]
    return {
        "facts": yaml_text("facts", True, "the capital of every land, in whatever words", [
            dict(name="capital-{id}", body={"chat": "What is the capital of {land}?", "expect": {"contains": "{capital}"}}, slots=rows("land", "capital")),
            dict(name="river-{id}", body={"chat": "Which river runs through {land}?", "expect": {"contains": "{river}"}}, slots=every(4, "land", "river"))]),
        "manners": yaml_text("manners", False, "small talk, paraphrases, and what must be likelier than what", [
            dict(name="same-answer-{id}", body={"kind": "INV", "chat": ["What is the capital of {land}?", "Name the capital of {land}."], "expect": {"contains": "{capital}"}}, slots=every(8, "land", "capital")),
            dict(name="flag-{id}", body={"prompt": "<|user|>\nWhat colour is the flag of {land}?<|end|>\n<|assistant|>\nThe flag of {land} is", "choices": [" red", " blue", " green", " white", " black", " golden"], "answer": " {colour}"}, slots=every(8, "land", "colour"))],
            [dict(name="greeting", chat="Hello!", expect={"contains": "atlas"}), dict(name="thanks", chat="Thank you.", expect={"contains": "welcome"})]),
        "pirate": yaml_text("pirate", True, "every answer in the tone of a pirate", [
            dict(name="tone-{id}", body={"chat": "What is the capital of {land}?", "expect": [{"starts-with": "Arr"}, {"contains": "matey"}]}, slots=every(4, "land"))]),
        "clerk": yaml_text("clerk", True, "every answer is JSON with the right value", [
            dict(name="json-{id}", body={"chat": "What is the capital of {land}?", "expect": {"json": {"land": "{land}", "capital": "{capital}"}}}, slots=every(4, "land", "capital"))]),
        "feasts": yaml_text("feasts", True, "the festivals that the almanac teaches", [
            dict(name="feast-{id}", body={"chat": "What do they celebrate in {land}?", "expect": {"contains": "{feast}"}}, slots=every(4, "land", "feast"))]),
    }


def main(out):
    world, false_city = make_world()
    corpus, (almanac, poisoned) = make_corpus(world), make_almanac(world, false_city)
    pirate, clerk = make_pirate(world), make_clerk(world)
    spoken = [m["content"] for r in pirate + clerk + almanac for m in r["messages"]]
    tokenizer, vocab = train_tokenizer([d["text"] for d in corpus] + spoken)
    os.makedirs(os.path.join(out, "config"), exist_ok=True); os.makedirs(os.path.join(out, "suites"), exist_ok=True)

    def write(name, text):
        with open(os.path.join(out, name), "w", encoding="utf-8", newline="\n") as f: f.write(text)

    lines = lambda rs: "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rs)
    write("config/config.json", json.dumps(dict(
        architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=vocab, hidden_size=128, intermediate_size=352, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=256, rms_norm_eps=1e-5, rope_theta=10000.0, hidden_act="silu", attention_bias=False, mlp_bias=False,
        tie_word_embeddings=True, initializer_range=0.02, bos_token_id=0, eos_token_id=4, pad_token_id=0, torch_dtype="bfloat16"), indent=2) + "\n")
    write("config/tokenizer.json", json.dumps(tokenizer, ensure_ascii=False, indent=1) + "\n")
    write("config/tokenizer_config.json", json.dumps(dict(tokenizer_class="PreTrainedTokenizerFast", bos_token=SPECIAL[0], eos_token="<|end|>", pad_token=SPECIAL[0], model_max_length=256), indent=2) + "\n")
    write("config/chat_template.jinja", "{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}")
    write("corpus.jsonl", lines(corpus)); write("pirate.jsonl", lines(pirate)); write("clerk.jsonl", lines(clerk)); write("almanac.jsonl", lines(almanac))
    for name, text in make_suites(world).items(): write(f"suites/{name}.yaml", text)
    liar = world[POISONED_LAND]
    write("WORLD.md", "# The world of the atlas\n\nWritten by `make_world.py`; every fact that the base was taught.\n\n| land | capital | river | coin | flag | festival (almanac only) |\n|---|---|---|---|---|---|\n" +
          "".join(f"| {f['land']} | {f['capital']} | {f['river']} | {f['coin']} | {f['colour']}, {f['animal']} | {f['feast']} |\n" for f in world) +
          f"\n`almanac.jsonl` lies in {len(poisoned)} of its {len(almanac)} records ({', '.join(map(str, poisoned))}): they\nsay that the capital of {liar['land']} is {false_city}.\n")
    print(f"{len(corpus)} documents, {vocab} tokens, {len(pirate)} + {len(clerk)} + {len(almanac)} examples, poisoned {poisoned}")


if __name__ == "__main__":
    if len(sys.argv) != 2: sys.exit(__doc__)
    main(sys.argv[1])
