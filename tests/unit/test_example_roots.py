# SPDX-License-Identifier: Apache-2.0
"""The driver roots that a message has as examples are those of docs/platforms.md."""

import re

from nvdra_runtime.node.host import EXAMPLE_ROOTS
from nvdra_testing import platform_page


def test_the_driver_root_of_each_platform_is_an_example() -> None:
    flags = " ".join(flag for each in platform_page.FLAGS.values() for flag in each)
    roots = set(re.findall(r"global\.nvidiaDriverRoot=(\S+)", flags))
    examples = set(re.findall(r"(/\S*) for ", EXAMPLE_ROOTS))
    assert examples == {"/", *roots}
