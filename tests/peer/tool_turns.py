"""The second turn of a tool call through chat templates, as transformers and vLLM render it.

    python3 tests/peer/tool_turns.py tests/unit/infer/jinja_cases.json

Writes the file's "turns" and "turn_cases": for the families of "cases" and three templates more, the
text that jinja2 makes of messages whose content is null, missing or a list of parts. That is
transformers' text (messages as they are) where the template can do with them: it renders, prints no
None; parts are handed over where it loops over a content (vLLM's way to tell)
and prints none as Python writes it. Elsewhere it is vLLM's: the empty text, parts joined by line ends.
"""

import copy
import json
import sys

import jinja2
from jinja2 import nodes
from jinja_diff import environment

CALL = [{"type": "function", "id": "c12345678", "function": {"name": "get_weather", "arguments": {"city": "Ulm"}}}]
ASK = {"role": "user", "content": "How is it?"}
SAID = {"role": "tool", "tool_call_id": "c12345678", "name": "get_weather", "content": "21 degrees, None of it rain"}
PARTS = [{"type": "text", "text": "part one"}, {"type": "text", "text": "two"}]
TURNS = {
    "null": [ASK, {"role": "assistant", "content": None, "tool_calls": CALL}, SAID],
    "missing": [ASK, {"role": "assistant", "tool_calls": CALL}, SAID],
    "parts": [{"role": "user", "content": PARTS}],
    "parts-and-null": [
        {"role": "user", "content": PARTS}, {"role": "assistant", "content": None, "tool_calls": CALL},
        dict(SAID, content=PARTS),
    ],
}
MORE = {
    "chatml: adds the content to a text": "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "prints what there is": "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}",
    "deepseek: tests for none": "{% for message in messages %}{% if message['role'] == 'user' %}{{ '<U>' + message['content'] }}"
    "{% elif message['role'] == 'assistant' and message['content'] is none %}{{ '<A><calls>' }}{% for c in message['tool_calls'] %}"
    "{{ c['function']['name'] }}{% endfor %}{% elif message['role'] == 'assistant' %}{{ '<A>' + message['content'] }}"
    "{% else %}{{ '<out>' + message['content'] }}{% endif %}{% endfor %}",
}


def plain(messages, join, blank):
    out = copy.deepcopy(messages)
    for m in out:
        if join and isinstance(m.get("content"), list):
            m["content"] = "\n".join(p["text"] for p in m["content"])
        elif blank and m.get("content") is None:
            m["content"] = ""
    return out


def loops_over_content(source):
    def is_content(n):
        while isinstance(n, (nodes.Filter, nodes.Test)):
            n = n.node
        return (isinstance(n, nodes.Getattr) and n.attr == "content") or (
            isinstance(n, nodes.Getitem) and isinstance(n.arg, nodes.Const) and n.arg.value == "content")

    tree = environment().parse(source)
    over = any(is_content(f.iter) for f in tree.find_all(nodes.For))
    return over or any(is_content(f.node) and f.name == "selectattr" for f in tree.find_all(nodes.Filter))


def render(source, messages, tools):
    try:
        text = environment().from_string(source).render(
            messages=messages, tools=tools, documents=None, add_generation_prompt=True, bos_token="<s>", eos_token="</s>",
            date_string="26 Jul 2024")
    except (TypeError, jinja2.exceptions.TemplateError):
        return None
    return text


def main():
    path = sys.argv[1]
    with open(path) as f:
        file = json.load(f)
    families = {c["name"].rsplit(",", 1)[0]: c["template"] for c in file["cases"] if c["name"].startswith("family")}
    cases = []
    for name, source in {**families, **MORE}.items():
        for kind, messages in TURNS.items():
            shown = render(source, plain(messages, False, True), file["tools"])
            join = not loops_over_content(source) or shown is None or "'type'" in shown
            given = render(source, plain(messages, join, False), file["tools"])
            text = render(source, plain(messages, join, True), file["tools"])
            takes = given is not None and (text is None or given.count("None") <= text.count("None"))
            print(f"{name}: {kind}: parts {'joined' if join else 'as given'}, null "
                  f"{'as given' if takes else 'made empty'}{', both alike' if given == text else ''}", file=sys.stderr)
            text = given if takes else text
            cases.append({"name": f"{name}: {kind}", "template": source, "messages": kind, "tools": True,
                          "add_generation_prompt": True, "text": text})
    file["turns"], file["turn_cases"] = TURNS, cases
    with open(path, "w") as f:
        json.dump(file, f, indent=1, ensure_ascii=False)
        f.write("\n")


main()
