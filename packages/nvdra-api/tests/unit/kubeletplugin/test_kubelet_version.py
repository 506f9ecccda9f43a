# SPDX-License-Identifier: Apache-2.0
"""What a kubelet's version says about the registration of plugins."""

import pytest
from nvdra_runtime.kubeletplugin import kubelet_version


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("v1.32.13", False),
        ("v1.33.0", True),
        ("v1.33.13", True),
        ("1.36.3", True),
        ("v1.33.0-alpha.1", True),
        ("v1.32.13+k3s1", False),
        ("v1.34.4-eks-1234", True),
        ("v1.34+", False),
        ("v1.100.0", True),
        ("v2.0.0", True),
        ("v0.40.0", False),
        ("", False),
        ("unknown", False),
        ("v1.x.3", False),
    ],
)
def test_several_instances_are_registered_from_1_33_on(version: str, expected: bool) -> None:
    assert kubelet_version.registers_several_instances(version) is expected
