# SPDX-License-Identifier: Apache-2.0
"""`nvdra-migrate` reads and writes values as helm does: helm itself is asked."""

import json
import random
import string
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from nvdra_migrate import helm_values, values_text
from nvdra_migrate.helm_values import Setting
from nvdra_migrate.values_text import ValuesFileError

Asked = Callable[..., Any]

READ = """
x: &x {p: 1, q: 2}
fractions: [.1_0, ._5, .5, .5e3, -.5, +.5, 1., 1e3, 1e+3, 1E-2, 12e03, 5e, 1e400, 1.5e300, 1_0.5,
  0.1_2, .5_0, 0x1p-2, .0x1, -0.0, ., .., .inF, .nAn]
integers: [1_000, 1__0, 1_, _1, -_1, 0_7, 0_8, 017, 08, 0o17, 0O17, 0x1F, +0x1F, 0x_1F, 0x, 0b,
  0b11, 0B11, 0b-11, 0b+11, -0b11, -0b-11, 0b102, -0, +0, 9007199254740993, 9223372036854775808,
  12345678901234567890, +18446744073709551615, 99999999999999999999, 0777777777777777777777]
times: [1:30, 1:30.5, 190:20:30, 2026-08-01, 2026-8-1, 2026-13-45, 2026-08-01T10:00:00Z]
words: [y, Y, n, N, yes, Yes, YES, yEs, no, on, On, off, OFF, oFF, true, True, tRUE, false, ~, null,
  Null, nUll, =, +, <<x, "yes", '1', ""]
tags: [!!binary aGk=, !!str 1, !!str yes, !!int "3", !!int 0o17, !!float 3, !!float 1_000.5,
  !!bool "yes", !!null "", ! 12, !!timestamp 2026-01-01, !!map {a: !!seq [b]}]
keys: [{yes: 1}, {1: 2}, {1.50: 2}, {1e6: 1}, {1234567.5: 1}, {0.00001: 1}, {100000.5: 1},
  {16777217.0: 1}, {-0.0: 1}, {1e39: 1}, {017: 1}, {2026-08-01: 1}, {"1": 1}, {!!str 1: 1},
  {9223372036854775807: 1}]
merges: [{a: 1, a: 2}, {p: 9, <<: *x}, {<<: *x, p: 9}, {<<: [*x, {p: 5, r: 3}]}, {"<<": *x},
  {<<: {p: 3}}]
"""
REFUSED = (
    "{~: 1}",
    "{[a]: 1}",
    "{18446744073709551615: 1}",
    "{<<: 3}",
    "{<<: ~}",
    "[.inf]",
    "[-.INF]",
    "[.nan]",
    "[!!int 3.5]",
    "[!!int yes]",
    '[!!binary "=x"]',
    r'["\ud83d\ude00"]',
)
SETTINGS = (
    ("a.b", "2"),
    (r"a\.b", "2"),
    ("l[1][0]", "x"),
    ("l[3]", "y"),
    ("a.l[1].x", "3"),
    ("a.l[0].x", "3"),
    ("l[+1]", "z"),
    ("c[1].d", "1"),
    ("c", "{1,b,true}"),
    ("c", "{}"),
    ("c", "{a,b},d=1"),
    ("c", "{a}b"),
    ("c", r"\{a\}"),
    ("c", r"a\,b"),
    ("c", "a,d=e"),
    ("c", ""),
    ("c", "x\\"),
    ("c.d", "{null,2,x y}"),
    ("c", "007"),
    ("c", "1e3"),
    ("c", "0"),
    ("c", "-0"),
    ("c", "+5"),
    ("c", "TRUE"),
    ("c", "9223372036854775808"),
    ("c", "-9223372036854775808"),
    ("", "x"),
    # What helm refuses:
    ("a.", "1"),
    ("a.b.c", "1"),
    ("a[0]", "1"),
    ("l.x", "1"),
    ("l[a]", "1"),
    ("l[-1]", "1"),
    ("l[0]b", "1"),
    ("c", "{a"),
    ("c", "a,d"),
)
BELOW = {"a": {"b": 1, "l": [1, {"x": 2}]}, "l": ["p", ["q"]]}


@pytest.fixture(scope="module")
def asked(helm: str, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """What a chart gets from helm, or None if helm refuses the values."""
    chart = tmp_path_factory.mktemp("printed")
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: printed\nversion: 0.1.0\n")
    (chart / "templates").mkdir()
    template = "values: {{ .Values | toJson | quote }}\n"
    (chart / "templates" / "values.yaml").write_text(template)

    def values(text: str, *flags: str, above: Path | None = None) -> Any:
        more = ("--values", str(above)) if above else ()
        argv = (helm, "template", "printed", str(chart), "--values", "-", *more, *flags)
        done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            return None
        return json.loads(yaml.safe_load(done.stdout)["values"], parse_int=float)

    return values


def in_json(value: Any) -> Any:
    """A value with numbers as helm has them: all are floats."""
    return json.loads(json.dumps(value), parse_int=float)


def ours(text: str) -> Any:
    return values_text.Reader().values(text)


def test_values_are_read_as_helm_reads_them_and_written_so_that_it_reads_the_same(
    asked: Asked,
) -> None:
    read = ours(READ)
    assert in_json(read) == asked(READ)
    assert asked(values_text.write(read)) == in_json(read)


@pytest.mark.parametrize("seed", range(2))
def test_any_scalar_is_read_and_written_as_helm_does(asked: Asked, seed: int) -> None:
    chosen = random.Random(seed)
    letters = "0123456789xXoObB_+-.eE:aAfFnNyYtTrRuUlLsSoOiI~"
    texts = ["".join(chosen.choices(letters, k=chosen.randint(1, 6))) for _ in range(4_000)]
    plain = [
        text
        for text in texts
        if text.lower().lstrip("+-") not in (".inf", ".nan")
        and text[0] not in "-:"
        and not text.endswith(":")
    ]
    given = "v:\n" + "".join(f"- {text}\n" for text in plain)
    assert in_json(ours(given)) == asked(given)
    odd = [
        "".join(chosen.choices(string.printable + "äß€\u2028\u0085", k=chosen.randint(1, 8)))
        for _ in range(1_000)
    ]
    written = {"v": [*texts, *odd], "k": {text: text for text in (*texts, *odd)}}
    assert asked(values_text.write(written)) == written


@pytest.mark.parametrize("value", REFUSED)
def test_what_helm_refuses_is_refused(asked: Asked, value: str) -> None:
    text = f"v: {value}\n"
    assert asked(text) is None
    with pytest.raises(ValuesFileError):
        ours(text)


@pytest.mark.parametrize(("name", "text"), SETTINGS)
def test_a_value_is_set_as_helm_sets_it(asked: Asked, name: str, text: str) -> None:
    setting = Setting(name, text, is_text=False)
    expected = asked(json.dumps(BELOW), "--set", f"{name}={text}")
    if expected is None:
        with pytest.raises(ValuesFileError):
            helm_values.with_settings(BELOW, [setting])
    else:
        assert in_json(helm_values.with_settings(BELOW, [setting])) == expected


def test_a_text_is_set_and_files_are_joined_as_helm_does(asked: Asked, tmp_path: Path) -> None:
    above: Mapping[str, Any] = {"a": {"l": [3], "n": {"x": 1}}, "l": {"y": "z"}}
    file = tmp_path / "above.yaml"
    file.write_text(json.dumps(above))
    joined = helm_values.merged(BELOW, above)
    settings = [Setting("a.s", "{1,true}", is_text=True), Setting("a.s", "2", is_text=False)]
    joined = helm_values.with_settings(joined, settings)
    flags = ("--set-string", "a.s={1,true}", "--set", "a.s=2")
    assert in_json(joined) == asked(json.dumps(BELOW), *flags, above=file)
