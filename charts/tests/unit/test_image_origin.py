# SPDX-License-Identifier: Apache-2.0
"""Images come from a registry of the user's, or are in the nodes: this project publishes none."""

from collections.abc import Callable
from typing import Any

import pytest
from nvdra_testing.charts import COMPONENTS, UMBRELLA

Values = dict[str, Any]
Refusal = Callable[..., str]
Render = Callable[..., dict[str, dict[str, Any]]]

REFUSED = "global.imageRegistry: the images would come from docker.io/nvdra"
REMEDY = (
    "set it to the registry that you pushed the images to, or set the repository of each image, or "
    "global.imagePullPolicy=Never if the nodes have the images"
)
EVERYTHING: Values = {"webhook": {"enabled": True}}
OWN: Values = {"image": {"repository": "team/driver"}}
OWN_DAEMON: Values = {"daemon": {"image": {"repository": "registry.example.com/daemon"}}}
NOT_OWNED = ["", "docker.io", "docker.io/", "index.docker.io", "registry-1.docker.io"]


@pytest.mark.parametrize("chart", [UMBRELLA, *COMPONENTS])
@pytest.mark.parametrize("registry", NOT_OWNED)
@pytest.mark.parametrize("policy", ["IfNotPresent", "Always"])
def test_an_installation_from_a_name_that_the_project_does_not_own_is_refused(
    refusal: Refusal, chart: str, registry: str, policy: str
) -> None:
    told = refusal(chart, {"global": {"imageRegistry": registry, "imagePullPolicy": policy}})
    assert told.count(REFUSED) == 1
    assert REMEDY in told


@pytest.mark.parametrize("chart", [UMBRELLA, *COMPONENTS])
@pytest.mark.parametrize(
    "values",
    [
        {"global": {"imageRegistry": "registry.example.com"}},
        {"global": {"imageRegistry": "docker.io/team"}},
        {"global": {"imageRegistry": "", "imagePullPolicy": "Never"}},
    ],
    ids=["a-registry", "a-place-in-docker.io", "in-the-nodes"],
)
def test_an_installation_from_a_registry_of_the_users_is_not(
    render: Render, chart: str, values: Values
) -> None:
    assert render(chart, values)


def test_a_release_goes_on(render: Render) -> None:
    values = {**EVERYTHING, "global": {"imageRegistry": ""}}
    assert render("nvdra", values, "--is-upgrade")


def test_repositories_of_the_users_are_enough_if_every_image_has_one(
    refusal: Refusal, render: Render
) -> None:
    nowhere: Values = {"global": {"imageRegistry": ""}}
    parts = {"nvdra-gpu-plugin": OWN, "nvdra-cd-plugin": OWN, "webhook": OWN}
    own = {**nowhere, **parts, "nvdra-cd-controller": {**OWN, **OWN_DAEMON}}
    assert render("nvdra", own)
    assert REFUSED in refusal("nvdra", {**own, "nvdra-cd-controller": OWN})
    assert REFUSED in refusal("nvdra", {**own, "nvdra-cd-controller": OWN_DAEMON})
    # What is not installed has no image.
    without = {**nowhere, "nvdra-gpu-plugin": OWN}
    assert render("nvdra", {**without, "resources": {"computeDomains": {"enabled": False}}})
