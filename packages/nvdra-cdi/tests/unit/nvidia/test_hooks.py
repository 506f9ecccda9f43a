# SPDX-License-Identifier: Apache-2.0
"""The names of links that hooks create (docs/reference/cdi.md §15.2)."""

import pytest
from nvdra_cdi.nvidia import hooks


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("libcuda.so.1", "libcuda.so"),
        ("libcuda.so.580.95.05", "libcuda.so"),
        ("libcuda.so", "libcuda.so"),
        ("foo.so.so.566", "foo.so.so"),
        ("foo.so.1.so.2", "foo.so.1.so"),
        ("foo.so.", "foo.so"),
        (".so", ".so"),
        ("foo.bar.baz", ""),
        ("so", ""),
        ("", ""),
    ],
)
def test_the_name_that_linkers_use_ends_at_the_last_so(name: str, expected: str) -> None:
    assert hooks.so_name(name) == expected
