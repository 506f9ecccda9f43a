# SPDX-License-Identifier: Apache-2.0
"""One value says how every program of a release logs, and so do the daemons that it creates."""

from collections.abc import Callable
from typing import Any

import pytest
from nvdra_cd_controller import app, children
from nvdra_cd_controller.settings import Settings as ControllerSettings
from nvdra_imex_daemon.settings import Settings as DaemonSettings
from nvdra_runtime.settings import loader
from nvdra_testing.control_plane.domain_values import UID

Render = Callable[..., dict[str, dict[str, Any]]]


def variables(pod: dict[str, Any]) -> dict[str, str]:
    """The variables of a pod's only container; a field of the pod is its path."""
    (container,) = pod["containers"]
    return {
        each["name"]: each["value"]
        if "value" in each
        else each["valueFrom"]["fieldRef"]["fieldPath"]
        for each in container["env"]
    }


@pytest.mark.parametrize(
    ("values", "wanted"),
    [({}, "json"), ({"loggingFormat": "json"}, "json"), ({"loggingFormat": "text"}, "text")],
)
def test_every_program_logs_in_the_format_of_the_one_value(
    render: Render, values: dict[str, str], wanted: str
) -> None:
    objects = render("nvdra", {"global": values})
    pods = [
        each["spec"]["template"]["spec"]
        for kind in ("DaemonSet", "Deployment")
        for each in objects[kind].values()
    ]
    assert [variables(pod)["LOGGING_FORMAT"] for pod in pods] == [wanted] * 3
    (deployment,) = objects["Deployment"].values()
    told = variables(deployment["spec"]["template"]["spec"])
    controller = loader.load_or_raise(ControllerSettings, [], told)
    made = children.daemonset(UID, controller.namespace, app.child_config(controller))
    daemon = {**variables(made["spec"]["template"]["spec"]), "POD_IP": "10.0.0.1"}
    assert loader.load_or_raise(DaemonSettings, [], daemon).logging_format == wanted
