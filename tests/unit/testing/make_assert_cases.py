#!/usr/bin/env python3
"""Writes assert_cases.json: what other programs say of texts, schemas and documents.

    pip install rouge_score sacrebleu nltk rapidfuzz jsonschema
    python3 make_assert_cases.py > assert_cases.json

Overlap: rouge_score (no stemmer), sacrebleu.sentence_bleu, nltk.translate.gleu_score over sacrebleu's
13a tokens, rapidfuzz's Levenshtein distance. Schemas: jsonschema's Draft202012Validator. XML: expat.
"""
import json
import random
import sys
import xml.parsers.expat

import jsonschema
from nltk.translate.gleu_score import sentence_gleu
from rapidfuzz.distance import Levenshtein
from rouge_score import rouge_scorer
from sacrebleu import sentence_bleu
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

rng = random.Random(7)
WORDS = "the cat sat on a mat in Paris, 1,234.5 well-known don't (yes) A/B e-mail 3-4 ... x&amp;y end.".split()
PAIRS = [
    ("The cat sat on the mat.", ["The cat is on the mat."]),
    ("the the the the", ["the cat the dog"]),
    ("A completely different sentence", ["nothing is shared here"]),
    ("It is 3.14, not 3,14!", ["It is 3.14 - not 3,14."]),
    ("Paris", ["Paris"]),
    ("Paris is the capital of France.", ["The capital of France is Paris.", "Paris is France's capital."]),
    ("naïve café", ["naive café crème"]),
    ("one two three four five six seven", ["one two three four five six seven eight nine ten"]),
    ("one two three four five six seven eight", ["one two three"]),
    ("\"Quoted\" &quot;text&quot; [x] {y} ~z", ["Quoted text x y z"]),
    ("a.b,c 1.5 ,5 5, .x x. -7 7-x", ["a . b , c 1.5 5 x"]),
    ("日本語 の テスト です", ["日本語 の 試験 です"]),
]
for _ in range(28):
    a = " ".join(rng.choice(WORDS) for _ in range(rng.randint(3, 14)))
    b = [" ".join(w if rng.random() < 0.7 else rng.choice(WORDS) for w in a.split()) for _ in range(rng.randint(1, 3))]
    PAIRS.append((a, b))


def overlap():
    out = []
    r = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rouge3", "rougeL"])
    tok = Tokenizer13a()
    for answer, texts in PAIRS:
        s = [r.score(t, answer) for t in texts]
        best = lambda k: max(x[k].fmeasure for x in s)
        out.append({
            "answer": answer, "texts": texts,
            "rouge-n": [best("rouge1"), best("rouge2"), best("rouge3")],
            "rouge-l": best("rougeL"),
            "bleu": sentence_bleu(answer, texts).score / 100,
            "gleu": max(sentence_gleu([tok(t).split()], tok(answer).split()) for t in texts),
            "levenshtein": Levenshtein.distance(answer, texts[0]),
        })
    return out


SCHEMAS = [
    {"type": "integer"}, {"type": ["number", "null"]}, {"enum": [1, "a", None, [1, {"b": 2.0}]]},
    {"const": {"a": [1, 2]}}, {"minimum": 2, "exclusiveMaximum": 5}, {"exclusiveMinimum": 2, "maximum": 5},
    {"multipleOf": 3}, {"multipleOf": 0.5}, {"minLength": 2, "maxLength": 3}, {"pattern": "^a.b$"},
    {"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
    {"items": {"type": "integer"}, "minItems": 1, "maxItems": 3}, {"uniqueItems": True},
    {"contains": {"const": 1}, "minContains": 2, "maxContains": 3}, {"contains": {"const": 1}, "minContains": 0},
    {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]},
    {"properties": {"a": True}, "additionalProperties": False},
    {"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
    {"propertyNames": {"maxLength": 1}}, {"minProperties": 1, "maxProperties": 2},
    {"dependentRequired": {"a": ["b"]}}, {"dependentSchemas": {"a": {"required": ["x"]}}},
    {"anyOf": [{"type": "integer"}, {"minLength": 2}]}, {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
    {"allOf": [{"minimum": 1}, {"maximum": 4}]}, {"not": {"type": ["string", "object"]}},
    {"if": {"type": "integer"}, "then": {"minimum": 3}, "else": {"type": "string"}},
    {"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "required": ["v"], "properties": {
        "v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
        "additionalProperties": False}}},
    {"type": "object", "properties": {"list": {"type": "array", "items": {"$ref": "#/definitions/p~1q"}}},
     "definitions": {"p/q": {"type": "string", "title": "t"}}},
    True, False,
]
VALUES = [
    None, True, False, 0, 1, 2, 3, 4, 5, 6, 1.0, 2.5, 4.999, -3, "", "a", "ab", "axb", "abc", "abcd", "éé", "日本語字",
    [], [1], [1, 1], [1, 1.0, 1, 1], ["a", 1], ["a", 1, 2], ["a", "b"], [1, {"b": 2}], [True, 1], [[1], [1.0]],
    {}, {"a": 1}, {"a": "1"}, {"a": 1, "b": "x"}, {"b": "x"}, {"a": 1, "b": 2, "c": 3}, {"a": [1, 2]}, {"a": [2, 1]},
    {"x": 1}, {"xy": 1}, {"xy": "1"}, {"a": 1, "x": 2}, {"v": 1}, {"v": 1, "kids": [{"v": 2, "kids": []}]},
    {"v": 1, "kids": [{"v": "2"}]}, {"v": 1, "z": 0}, {"list": ["a", "b"]}, {"list": ["a", 1]},
]
DOCS = [
    "<a/>", "<a></a>", "<a>", "<a></b>", "<a><b/></a>", "<a/><b/>", "text", "<a>text</a> tail", "<a b='1'/>",
    "<a b=1/>", "<a b/>", "<a b='1' b='2'/>", "<a b='1'c='2'/>", "<a b='<'/>", "<a b='&lt;'/>", "<a>&amp;&#10;&#x41;</a>",
    "<a>&nbsp;</a>", "<a>&</a>", "<a>&#0;</a>", "<a>&#x110000;</a>", "<a>]]></a>", "<a><![CDATA[<b>&]]></a>",
    "<a><![CDATA[</a>", "<!-- c --><a/>", "<a><!-- -- --></a>", "<a><!-- x", "<?xml version='1.0'?><a/>",
    "<a><?pi x?></a>", "<a><?pi x</a>", "<1a/>", "<a-b.c_d:e xmlns:e='u'/>".replace(":e xml", " xml"), "<é ü='x'/>",
    "< a/>", "<a / >", "<a\n\tb = \"1\"\n/>", "</a>", "<a></a >", "<a></ a>", "<a><b></a></b>", "<a>\x01</a>", "&amp;<a/>",
    "<a>日本語</a>", "<a b='x\ny'/>", "<A></a>", "",
]


def verdict(schema, value):
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def well_formed(text):
    try:
        xml.parsers.expat.ParserCreate().Parse(text, True)
        return True
    except xml.parsers.expat.ExpatError:
        return False


json.dump({
    "overlap": overlap(),
    "values": VALUES,
    "schemas": [{"schema": s, "valid": "".join("01"[verdict(s, v)] for v in VALUES)} for s in SCHEMAS],
    "xml": [[d, well_formed(d)] for d in DOCS],
}, sys.stdout, ensure_ascii=False, indent=0)
sys.stdout.write("\n")
