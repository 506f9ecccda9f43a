# SPDX-License-Identifier: Apache-2.0
"""Every text that others write passes one parser with bounds: nothing else parses JSON or YAML.

`nvdra_api.json_text` is that parser. pydantic's `model_validate_json` is the same one, with the
same bounds of depth, digits and Unicode.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGES = Path(__file__).parents[2] / "packages"

PARSERS = {
    "json": {"load", "loads", "JSONDecoder"},
    "yaml": {"load", "safe_load", "load_all", "safe_load_all", "parse", "compose", "full_load"},
    "msgspec.json": {"decode", "Decoder"},
    "ast": {"literal_eval"},
    "pickle": {"load", "loads"},
    "pydantic_core": {"from_json"},
    "fractions": {"Fraction"},
    "decimal": {"Decimal"},
}
"""What parses a text without our bounds, by module."""

EXCUSED = {
    ("nvdra_api/json_text.py", "pydantic_core.from_json"): "the parser",
    ("nvdra_api/json_text.py", "json.loads"): "of a text that the parser has accepted",
    ("nvdra_api/decoding.py", "json.JSONDecoder"): "of a text that `json_text.check` has accepted",
    ("nvdra_api/quantity.py", "fractions.Fraction"): "of integers; texts and exponents are bounded",
    ("nvdra_cd_controller/crds/definitions.py", "yaml.safe_load"): "files of the package itself",
    ("nvdra_cdi/cli/inject_command.py", "json.loads"): (
        "a container's configuration that whoever starts the command names; the package has no "
        "dependency, and the depth, infinite numbers and digits are errors of one line"
    ),
    ("nvdra_cdi/encoding/yaml_nodes.py", "yaml.parse"): "events, with bounds of bytes and depth",
    ("nvdra_migrate/values_text.py", "yaml.parse"): "events, which are counted",
    ("nvdra_webhook/admission/review.py", "msgspec.json.Decoder"): (
        "a body of at most 3 MiB; depth, numbers and Unicode are errors that it catches"
    ),
    ("nvdra_webhook/admission/claim.py", "msgspec.json.Decoder"): "a part of that body",
    ("nvdra_webhook/admission/claim.py", "msgspec.json.decode"): "a part of that body",
}
"""Where such a parser may be, and why."""


def used(tree: ast.Module) -> Iterator[str]:
    """The parsers that a module uses, as `module.name`."""
    modules: dict[str, str] = {}
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {each.asname or each.name: each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                names[each.asname or each.name] = f"{node.module}.{each.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            whole = ast.unparse(node)
            first, _, rest = whole.partition(".")
            found = f"{modules.get(first, names.get(first, first))}.{rest}"
        elif isinstance(node, ast.Name):
            found = names.get(node.id, "")
        else:
            continue
        module, _, name = found.rpartition(".")
        if name in PARSERS.get(module, ()):
            yield found


def all_used() -> set[tuple[str, str]]:
    return {
        (str(path).partition("/src/")[2], found)
        for path in PACKAGES.glob("*/src/**/*.py")
        if "_generated" not in path.parts
        for found in used(ast.parse(path.read_text()))
    }


def test_only_excused_modules_parse_without_the_bounds() -> None:
    assert all_used() - EXCUSED.keys() == set()


def test_every_excuse_is_needed() -> None:
    assert EXCUSED.keys() - all_used() == set()


def test_a_parser_is_found_however_it_is_imported() -> None:
    for text in (
        "import json\njson.loads(x)",
        "import json as j\nj.loads(x)",
        "from json import loads\nloads(x)",
        "from json import loads as read\nread(x)",
    ):
        assert set(used(ast.parse(text))) == {"json.loads"}
    assert set(used(ast.parse("import msgspec\nmsgspec.json.decode(x)"))) == {"msgspec.json.decode"}
