# SPDX-License-Identifier: Apache-2.0
"""One small document in many notations, and what looks like it: docs/reference/cdi.md §5.

Written by hand: what matters here is how it is written.
"""

from collections.abc import Iterator

_JSON = (
    '{"cdiVersion":"0.3.0","kind":"v.com/c",'
    '"devices":[{"name":"a","containerEdits":{"env":["A=b"]}}]}'
)
_YAML = """cdiVersion: 0.3.0
kind: v.com/c
devices:
- name: a
  containerEdits:
    env: [A=b]
"""
_MERGED = """cdiVersion: 0.3.0
kind: v.com/c
devices:
- name: a
  containerEdits: &edits
    env: [A=b]
- name: b
  containerEdits:
    <<: *edits
"""
_ALIASED = _YAML.replace("env: [A=b]", "env: &e [A=b]\n- name: b\n  containerEdits:\n    env: *e")


def _replaced(old: str, new: str) -> bytes:
    assert old in _YAML
    return _YAML.replace(old, new).encode()


def _with_version(text: str) -> bytes:
    return _replaced("cdiVersion: 0.3.0", f"cdiVersion: {text}")


def _numbered(text: str) -> bytes:
    nodes = f"deviceNodes: [{{path: /a, major: {text}}}]"
    return _replaced("env: [A=b]", nodes)


def all_of_them() -> Iterator[tuple[str, bytes]]:
    """What it shows, and the document."""
    yield from _readable()
    yield from _unreadable()
    yield from _typed()


def _readable() -> Iterator[tuple[str, bytes]]:
    yield "compact JSON", _JSON.encode()
    yield "JSON with blanks and tabs", _JSON.replace(",", " ,\t").replace(":", ": ").encode()
    yield "JSON over lines, indented with tabs", _JSON.replace("{", "{\n\t").encode()
    yield "JSON with escapes", _JSON.replace("A=b", "A=\\u00fc\\n\\t\\/\\\\").encode()
    yield "JSON with a surrogate pair", _JSON.replace("A=b", "A=\\ud83d\\ude42").encode()
    yield "block style", _YAML.encode()
    yield "a start marker", f"---\n{_YAML}".encode()
    yield "an end marker", f"---\n{_YAML}...\n".encode()
    yield "a directive", f"%YAML 1.1\n---\n{_YAML}".encode()
    yield "a directive of 1.2", f"%YAML 1.2\n---\n{_YAML}".encode()
    yield "comments", f"# first\n{_YAML}# last\n".encode()
    yield "a second document", f"{_YAML}---\nnot: {{a spec}}\n".encode()
    yield "a broken second document", f"{_YAML}---\n[}}\n".encode()
    yield "line ends of Windows", _YAML.replace("\n", "\r\n").encode()
    yield "a byte order mark", b"\xef\xbb\xbf" + _YAML.encode()
    yield "UTF-16, little end first", b"\xff\xfe" + _YAML.encode("utf-16-le")
    yield "UTF-16, big end first", b"\xfe\xff" + _YAML.encode("utf-16-be")
    yield "an alias", _ALIASED.encode()
    yield "a merge key", _MERGED.encode()
    yield (
        "a merge key beside its own fields",
        _MERGED.replace("<<: *edits", "env: [B=c]\n    <<: *edits").encode(),
    )
    yield "a folded text", _replaced("A=b", '"A=b\n      c"')
    yield "a block text", _replaced("env: [A=b]", "env:\n    - |-\n      A=b\n      c")
    yield "a key in quotes", _replaced("kind:", '"kind":')
    yield "an explicit key", _replaced("kind: v.com/c", "? kind\n: v.com/c")
    yield "no-break spaces and others", _replaced("A=b", '"A=\u00a0\u2028\ufeff\u0085"')
    yield "any plane", _replaced("A=b", '"A=\U0001f642\U0010fffd"')
    yield "a long text", _replaced("A=b", f"A={'x' * 100_000}")
    yield "many entries", _replaced("[A=b]", f"[{', '.join(['A=b'] * 5_000)}]")


def _unreadable() -> Iterator[tuple[str, bytes]]:
    yield "nothing", b""
    yield "blanks", b" \n\n"
    yield "a comment only", b"# nothing\n"
    yield "a start marker only", b"---\n"
    yield "null", b"null\n"
    yield "a tilde", b"~"
    yield "an empty mapping", b"{}"
    yield "a list", b"[]"
    yield "a text", b"hello"
    yield "a number", b"42"
    yield "a list around it", f"[{_JSON}]".encode()
    yield "an empty first document", f"---\n---\n{_YAML}".encode()
    yield "not UTF-8", _YAML.encode() + b"# \xff\xfe\n"
    yield "Latin-1", _replaced("A=b", "A=ü").decode().encode("latin-1")
    yield "a NUL byte", _YAML.encode() + b"\0"
    yield "a control character", _replaced("A=b", "A=\x07")
    yield "half a JSON", _JSON[:50].encode()
    yield "a comma too many in JSON", _JSON.replace("]}}", "],}}").encode()
    yield "two JSON documents in a row", (_JSON + _JSON).encode()
    yield "a tab for indentation", _replaced("    env", "\tenv")
    yield "wrong indentation", _replaced("kind", "  kind")
    yield "an unknown alias", _replaced("[A=b]", "*nobody")
    yield "a mapping as key", _replaced("kind: v.com/c", "? {a: b}\n: v.com/c")
    yield "a list as key", _replaced("kind: v.com/c", "? [kind]\n: v.com/c")
    yield "a null key", _YAML.encode() + b"~: x\n"
    yield "an unknown field", _YAML.encode() + b"more: x\n"
    yield "an unknown null field", _YAML.encode() + b"more:\n"
    yield "a field of another object", _YAML.encode() + b"env: []\n"
    yield "a field in capitals", _replaced("kind:", "Kind:")
    yield "a doubled field", _YAML.encode() + b"kind: v.com/c\n"
    yield "a doubled annotation", _with_version("1.0.0") + b"annotations: {a: b, a: c}\n"
    yield "a doubled field in a device", _replaced("name: a", "name: a\n  name: a")
    yield "a doubled null field", _YAML.encode() + b"containerEdits:\ncontainerEdits:\n"
    yield "a deep list", _replaced("[A=b]", "[" * 40 + "]" * 40)
    yield "a deep mapping", _replaced("[A=b]", "{a: " * 40 + "1" + "}" * 40)
    yield "a list within itself", _replaced("[A=b]", "&e [*e]")
    yield "a mapping within itself", b"&e {cdiVersion: 0.3.0, kind: a/b, devices: [*e]}"
    yield "aliases that multiply", _bomb()
    yield "a surrogate", _JSON.replace("A=b", "A=\\ud800").encode()
    yield "over 4 MiB", _YAML.encode() + b"#" * (4 << 20)
    yield "over 100,000 nodes", _replaced("[A=b]", f"[{', '.join(['A=b'] * 100_001)}]")


def _bomb() -> bytes:
    lists = ["env0: &l0 [A=b, A=b, A=b, A=b, A=b, A=b, A=b, A=b, A=b, A=b]"]
    lists += [f"env{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 9)]
    return _YAML.encode() + "\n".join(lists).encode()


def _typed() -> Iterator[tuple[str, bytes]]:
    yield "a tagged text", _replaced("name: a", "name: !!str 5")
    yield "a number tagged as text", _numbered("!!str 5")
    yield "a number tagged as number", _numbered("!!int 5")
    yield "a number tagged as fraction", _numbered("!!float 5")
    yield "a quoted number tagged as number", _numbered("!!int '5'")
    yield "a text tagged as number", _replaced("name: a", "name: !!int 5")
    yield "no number, tagged as one", _replaced("name: a", "name: !!int x")
    yield "a tagged mapping", _replaced("containerEdits:", "containerEdits: !!map")
    yield "a mapping tagged as list", _replaced("containerEdits:", "containerEdits: !!seq")
    yield "a private tag on a text", _replaced("name: a", "name: !mine a")
    yield "a private tag on a mapping", _replaced("containerEdits:", "containerEdits: !mine")
    yield "binary", _replaced("name: a", "name: !!binary YQ==")
    yield "a null with a tag", _replaced("[A=b]", "!!null x")
    yield "a time", _with_version("2001-12-14t21:59:43.10-05:00")
    yield "a version as number", _with_version("1.0")
    yield "a whole number as version", _with_version("1")
    yield "a list as version", _with_version("[0.3.0]")
    yield "a null version", _with_version("~")
