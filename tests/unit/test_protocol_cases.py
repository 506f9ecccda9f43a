# SPDX-License-Identifier: Apache-2.0
"""The acceptance cases of docs/reference/kubelet-plugin.md, "Acceptance cases": each has a test, or
a reason for none.

A test names the cases that it shows with `@pytest.mark.protocol("P9", ...)`. This test reads only
the sources, so it needs no cluster.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

EVERYWHERE = ("packages/*/tests", "e2e/tests", "charts/tests", "tests", "testing/tests")

CASES = {"R": 12, "P": 33, "S": 10, "H": 12, "M": 5}
"""The number of cases of each kind."""

LATER_RULES = "rules of a kubelet after 1.37, which none that we run has"
ONE_INSTANCE = "there is one instance per node: no update runs two of them"
NO_SHARES = "no device has a share id yet"
OF_A_KUBELET = "it is decided in the kubelet, and no driver can tell the difference"

LEFT_OUT = {
    "R12": LATER_RULES,
    "P23": NO_SHARES,
    "S5": ONE_INSTANCE,
    "H6": NO_SHARES,
    "H9": OF_A_KUBELET,
    "H10": OF_A_KUBELET,
}


A_KUBELETS_OWN = (
    *("R2", "R4", "R5", "R6", "R7", "R8", "R9", "R10"),
    *("P1", "P2", "P3", "P4", "P5", "P9", "P10", "P11", "P12", "P13", "P14", "P15", "P16", "P17"),
    *("P18", "P19", "P20", "P21", "P24", "P25", "P26", "P28", "P29", "S1", "S2", "S3", "S4"),
    *("H1", "H2", "H5"),
)
"""Cases that a test with a real kubelet must show."""


def test_every_case_has_a_test_or_a_reason_why_not() -> None:
    wanted = {f"{kind}{number + 1}" for kind, count in CASES.items() for number in range(count)}
    shown = set(_shown(*EVERYWHERE))
    assert wanted - shown - set(LEFT_OUT) == set(), "mark a test with @pytest.mark.protocol(...)"
    assert shown - wanted == set(), "there is no such case"
    assert shown & set(LEFT_OUT) == set(), "it has a test now: take it off the list"


def test_what_a_kubelet_does_is_shown_on_a_real_one() -> None:
    assert set(A_KUBELETS_OWN) - set(_shown("e2e/tests")) == set()


def test_what_does_not_exist_is_not_taken_for_shown() -> None:
    text = 'import pytest\n@pytest.mark.protocol("P1", "P2")\ndef test_a(): ...\n'
    assert list(_marked(ast.parse(text))) == ["P1", "P2"]
    assert list(_marked(ast.parse(text.replace("test_a", "helper")))) == []
    with pytest.raises(AssertionError):
        list(_marked(ast.parse(text.replace('"P2"', "CASE"))))


def _shown(*folders: str) -> Iterator[str]:
    """The cases that the tests in those directories name."""
    for path in (path for folder in folders for path in ROOT.glob(f"{folder}/**/test_*.py")):
        yield from _marked(ast.parse(path.read_text()))


def _marked(tree: ast.Module) -> Iterator[str]:
    """The cases that the tests of a module name, one by one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_test(node):
            for each in node.decorator_list:
                yield from _cases(each)


def _is_test(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return node.name.startswith("test_")


def _cases(decorator: ast.expr) -> Iterator[str]:
    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.protocol":
        for argument in decorator.args:
            assert isinstance(argument, ast.Constant), f"line {argument.lineno}: write it out"
            yield str(argument.value)
