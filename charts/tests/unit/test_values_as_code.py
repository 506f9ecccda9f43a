# SPDX-License-Identifier: Apache-2.0
"""No text of a value becomes YAML, a template or CEL: it is refused, or stands where it is put."""

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest
from nvdra_testing import yaml_documents
from nvdra_testing.charts import folder

Json = dict[str, Any]
Template = Callable[..., Any]

CHARTS = (
    "nvdra",
    "nvdra-gpu-plugin",
    "nvdra-cd-plugin",
    "nvdra-cd-controller",
    "nvdra-webhook",
)
PLAIN = "plain"
HOSTILE = (
    "' || true || '",
    '" || true || "',
    "\\",
    "\n---\nkind: Secret",
    "a: b",
    "a #b",
    "{{ .Values }}",
    "$(HOME)",
    "*a",
)
"""What ends a string of CEL or YAML, or begins something there."""
NOT_TEXTS = ("12345", "false", "1e300")
"""What is no text in YAML without quotes. Names may be such: `kubectl create namespace 12345`."""

EVERYTHING: Json = {
    "global": {
        "imageRegistry": "registry.example.com",
        "featureGates": {"AllAlpha": True, "HostManagedIMEXDaemon": False},
        "podMonitors": {"enabled": True},
    }
}
"""What renders most of a chart."""


class Leaf(NamedTuple):
    """A place of a value that is a text.

    Attributes:
        path: Names of values; `[]` for an item of a list, `*` for any key.
        patterns: What the schema asks of the text.
    """

    path: tuple[str, ...]
    patterns: tuple[str, ...]

    def admits(self, text: str) -> bool:
        """Whether the schema may admit it."""
        return all(re.search(pattern, text) for pattern in self.patterns)

    def values(self, text: str) -> Json:
        """Values with the text in this place."""
        made: Any = text
        for name in reversed(self.path):
            made = [made] if name == "[]" else {("a" if name == "*" else name): made}
        found: Json = made
        return found


def leaves(node: Any, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """The texts of a schema; those of a set of constants are left out."""
    if not isinstance(node, dict) or "const" in node or "enum" in node:
        return
    kinds = node.get("type", ())
    if "string" in ([kinds] if isinstance(kinds, str) else kinds):
        yield Leaf(path, (node["pattern"],) if "pattern" in node else ())
    for name, below in (node.get("properties") or {}).items():
        yield from leaves(below, (*path, name))
    yield from leaves(node.get("items"), (*path, "[]"))
    yield from leaves(node.get("additionalProperties"), (*path, "*"))
    for name in ("anyOf", "oneOf"):
        for below in node.get(name, ()):
            yield from leaves(below, path)


def of_chart(chart: str) -> list[Leaf]:
    return list(leaves(json.loads((folder(chart) / "values.schema.json").read_text())))


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> Json:
    both = dict(one)
    for name, value in other.items():
        there = both.get(name)
        is_nested = isinstance(there, dict) and isinstance(value, dict)
        both[name] = merged(there, value) if is_nested and there is not None else value
    return both


def replaced(found: Any, text: str, key: str = "") -> Any:
    """The objects with another text in place of the plain one, also as a key."""
    if isinstance(found, dict):
        return {
            name.replace(PLAIN, text): replaced(value, text, name) for name, value in found.items()
        }
    if isinstance(found, list):
        return [replaced(value, text, key) for value in found]
    if isinstance(found, str) and PLAIN in found:
        is_code = key in ("expression", "messageExpression")
        assert not is_code or text in NOT_TEXTS, f"{text} in CEL: {found[-300:]}"
        return found.replace(PLAIN, text)
    return found


def objects(text: str) -> Any:
    return read([item for item in yaml_documents.load_all(text) if item])


def in_order(found: list[Json]) -> list[Json]:
    """Helm orders hooks by their namespaces too."""
    return sorted(found, key=lambda item: json.dumps(item, sort_keys=True))


def read(found: Any) -> Any:
    """The objects with variables and annotations that are JSON as what they say."""
    if isinstance(found, dict):
        return {name: read(value) for name, value in found.items()}
    if isinstance(found, list):
        return [read(value) for value in found]
    if isinstance(found, str) and found.startswith("{"):
        with contextlib.suppress(ValueError):
            return json.loads(found)
    return found


def places(texts: tuple[str, ...]) -> list[Any]:
    """The places of all charts that may admit some of the texts."""
    return [
        pytest.param(chart, leaf, id=f"{chart}.{'.'.join(leaf.path)}")
        for chart in CHARTS
        for leaf in of_chart(chart)
        if any(leaf.admits(text) for text in texts)
    ]


@pytest.mark.parametrize(("chart", "leaf"), places(HOSTILE))
def test_a_text_stays_a_text(template: Template, chart: str, leaf: Leaf) -> None:
    plain = template(chart, merged(EVERYTHING, leaf.values(PLAIN)))
    for text in (text for text in HOSTILE if leaf.admits(text)):
        done = template(chart, merged(EVERYTHING, leaf.values(text)))
        if done.returncode == plain.returncode == 0:
            assert objects(done.stdout) == replaced(objects(plain.stdout), text), text
        else:
            assert done.returncode, f"{text} is admitted, and {PLAIN} is not"
            assert "YAML parse error" not in done.stderr, f"{text}: {done.stderr}"


@pytest.mark.parametrize(("chart", "leaf"), places((PLAIN,)))
def test_a_name_that_looks_like_a_number_stays_a_name(
    template: Template, chart: str, leaf: Leaf
) -> None:
    plain = template(chart, merged(EVERYTHING, leaf.values(PLAIN)))
    if plain.returncode:
        return  # of another form, such as a duration
    for text in (text for text in NOT_TEXTS if leaf.admits(text)):
        done = template(chart, merged(EVERYTHING, leaf.values(text)))
        if not done.returncode:
            assert in_order(objects(done.stdout)) == in_order(replaced(objects(plain.stdout), text))


@pytest.mark.parametrize("chart", CHARTS)
def test_a_namespace_that_looks_like_a_number_stays_a_name(template: Template, chart: str) -> None:
    for text in NOT_TEXTS:
        done = template(chart, EVERYTHING, "--namespace", text)
        plain = template(chart, EVERYTHING, "--namespace", PLAIN)
        assert in_order(objects(done.stdout)) == in_order(replaced(objects(plain.stdout), text))
