"""sarif_check.py FILE...: each is what the schema of SARIF 2.1.0 (OASIS, sarif-schema-2.1.0.json)
asks of the objects that fmstore writes: required properties, no other property than the schema's,
types and enumerations, unique items; and, beyond the schema, that indices and ids fit together."""
import json
import sys

TEXT, WHOLE, NUMBER, FLAG, LIST, BAG, ANY = "text", "whole", "number", "flag", "list", "bag", "any"
LEVEL = {"none", "note", "warning", "error"}


def is_kind(kind, v):
    if isinstance(kind, set):
        return v in kind
    return {
        TEXT: lambda: isinstance(v, str),
        WHOLE: lambda: isinstance(v, int) and not isinstance(v, bool) and v >= -1,
        NUMBER: lambda: isinstance(v, (int, float)) and not isinstance(v, bool),
        FLAG: lambda: isinstance(v, bool),
        LIST: lambda: isinstance(v, list),
        BAG: lambda: isinstance(v, dict),
        ANY: lambda: True,
    }[kind]()


# name -> (required, {property: kind | name of an object | [name of the items' object]})
SCHEMA = {
    "log": (["version", "runs"], {"$schema": TEXT, "version": {"2.1.0"}, "runs": ["run"],
                                  "inlineExternalProperties": LIST, "properties": BAG}),
    "run": (["tool"], {"tool": "tool", "results": ["result"], "automationDetails": "automation",
                       "columnKind": {"utf16CodeUnits", "unicodeCodePoints"}, "language": TEXT,
                       "artifacts": LIST, "invocations": LIST, "properties": BAG}),
    "tool": (["driver"], {"driver": "component", "extensions": ["component"], "properties": BAG}),
    "component": (["name"], {"name": TEXT, "fullName": TEXT, "version": TEXT, "guid": TEXT,
                             "semanticVersion": TEXT, "informationUri": TEXT, "rules": ["rule"],
                             "shortDescription": "words", "fullDescription": "words",
                             "properties": BAG}),
    "rule": (["id"], {"id": TEXT, "name": TEXT, "guid": TEXT, "shortDescription": "words",
                      "fullDescription": "words", "defaultConfiguration": "configuration",
                      "help": "words", "helpUri": TEXT, "properties": BAG}),
    "words": (["text"], {"text": TEXT, "markdown": TEXT, "properties": BAG}),
    "configuration": ([], {"enabled": FLAG, "level": LEVEL, "rank": NUMBER, "parameters": BAG,
                           "properties": BAG}),
    "message": ([], {"text": TEXT, "markdown": TEXT, "id": TEXT, "arguments": LIST,
                     "properties": BAG}),
    "automation": ([], {"description": "message", "id": TEXT, "guid": TEXT,
                        "correlationGuid": TEXT, "properties": BAG}),
    "result": (["message"], {"ruleId": TEXT, "ruleIndex": WHOLE, "level": LEVEL,
                             "kind": {"notApplicable", "pass", "fail", "review", "open",
                                      "informational"},
                             "message": "message", "locations": ["location"],
                             "partialFingerprints": "prints", "fingerprints": "prints",
                             "suppressions": ["suppression"], "rank": NUMBER,
                             "occurrenceCount": WHOLE, "guid": TEXT, "properties": BAG}),
    "location": ([], {"id": WHOLE, "physicalLocation": "physical", "logicalLocations": ["logical"],
                      "message": "message", "properties": BAG}),
    "physical": ([], {"artifactLocation": "artifact", "address": BAG, "region": BAG,
                      "contextRegion": BAG, "properties": BAG}),
    "artifact": ([], {"uri": TEXT, "uriBaseId": TEXT, "index": WHOLE, "description": "message",
                      "properties": BAG}),
    "logical": ([], {"name": TEXT, "index": WHOLE, "fullyQualifiedName": TEXT,
                     "decoratedName": TEXT, "parentIndex": WHOLE, "kind": TEXT,
                     "properties": BAG}),
    "suppression": (["kind"], {"kind": {"inSource", "external"}, "guid": TEXT,
                               "status": {"accepted", "underReview", "rejected"},
                               "justification": TEXT, "location": "location", "properties": BAG}),
}
UNIQUE = {"rules", "locations", "logicalLocations", "suppressions"}  # uniqueItems


def fail(where, why):
    sys.exit(f"{where}: {why}")


def check(name, v, where):
    if not isinstance(v, dict):
        fail(where, f"is no object: {v!r}")
    if name == "prints":
        for key, text in v.items():
            is_kind(TEXT, text) or fail(f"{where}.{key}", "is no text")
        return
    required, known = SCHEMA[name]
    for key in required:
        key in v or fail(where, f"'{key}' is missing")
    if name == "message" and not ("text" in v or "id" in v):
        fail(where, "has neither 'text' nor 'id'")
    if name == "physical" and not ("address" in v or "artifactLocation" in v):
        fail(where, "has neither 'address' nor 'artifactLocation'")
    for key, x in v.items():
        at = f"{where}.{key}"
        kind = known.get(key) or fail(where, f"'{key}' is no property of {name} that we know of")
        if isinstance(kind, list):
            is_kind(LIST, x) or fail(at, "is no list")
            if key in UNIQUE and len({json.dumps(o, sort_keys=True) for o in x}) < len(x):
                fail(at, "holds the same twice")
            for i, one in enumerate(x):
                check(kind[0], one, f"{at}[{i}]")
        elif isinstance(kind, str) and kind in SCHEMA or kind == "prints":
            check(kind, x, at)
        elif not is_kind(kind, x):
            fail(at, f"wants {kind}: {x!r}")


for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as f:
        log = json.load(f)
    check("log", log, path)
    for run in log["runs"]:
        rules = run["tool"]["driver"].get("rules", [])
        ids = [r["id"] for r in rules]
        len(set(ids)) == len(ids) or fail(path, "two rules have one id")
        for r in run.get("results", []):
            ids[r["ruleIndex"]] == r["ruleId"] or fail(path, f"{r['ruleId']}: another rule's index")
            r["kind"] == "fail" or r["level"] == "none" or fail(path, "a level goes with kind fail")
        print(f"{path.rsplit('/', 1)[-1]}: {len(run.get('results', []))} results")
