# SPDX-License-Identifier: Apache-2.0
"""Each value that docs/platforms.md says to add is one of the chart, and has its effect."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from nvdra_testing import platform_page

Render = Callable[..., dict[str, dict[str, Any]]]

WEBHOOK = {"webhook": {"enabled": True, "tls": {"mode": "self-managed"}}}
TESTED_ELSEWHERE = ("global.testPod.", "global.apiServerPorts")
"""What the pod of `helm test` has, and network policies."""


def text(objects: dict[str, dict[str, Any]]) -> str:
    return yaml.safe_dump(objects)


@pytest.mark.parametrize("platform", platform_page.FLAGS)
def test_each_value_of_a_row_has_an_effect(render: Render, platform: str) -> None:
    before = render("nvdra", WEBHOOK)
    for flag in platform_page.FLAGS[platform]:
        after = render("nvdra", WEBHOOK, flag)
        key, _, value = flag.removeprefix("--set=").partition("=")
        if key.startswith(TESTED_ELSEWHERE):
            continue
        assert value in text(after)
        assert text(after) != text(before)


def test_a_driver_below_the_root_of_a_row_is_mounted_from_there(render: Render) -> None:
    roots = {
        flag.rpartition("=")[2]
        for given in platform_page.FLAGS.values()
        for flag in given
        if "DriverRoot" in flag
    }
    assert len(roots) == 4
    for root in roots:
        objects = render("nvdra", {}, f"--set=global.nvidiaDriverRoot={root}")
        for daemonset in objects["DaemonSet"].values():
            volumes = daemonset["spec"]["template"]["spec"]["volumes"]
            paths = {volume.get("hostPath", {}).get("path", "/") for volume in volumes} - {"/"}
            assert any(Path(root).is_relative_to(path) for path in paths), (root, paths)


def test_the_plugins_use_the_directories_below_another_root_of_the_kubelet(render: Render) -> None:
    for daemonset in render("nvdra", platform_page.MOVED_KUBELET)["DaemonSet"].values():
        volumes = daemonset["spec"]["template"]["spec"]["volumes"]
        paths = {volume.get("hostPath", {}).get("path", "") for volume in volumes}
        assert any(path.startswith("/var/lib/k0s/kubelet") for path in paths)
        assert not any(path.startswith("/var/lib/kubelet") for path in paths)
