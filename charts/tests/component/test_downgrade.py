# SPDX-License-Identifier: Apache-2.0
"""The way back to the release 0.1.0, as docs/upgrade.md has it, also after a failed rollback."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nvdra_testing import former_charts
from nvdra_testing.charts import UMBRELLA, folder

Cluster = Any  # conftest.Cluster; a conftest cannot be imported
Helm = Callable[..., Any]

WHERE = ("--namespace", "nvdra-system")
RELEASED = former_charts.STATES[0]
REGISTRY = "--set=global.imageRegistry=registry.example.com"
NEW = ("upgrade", "nvdra", str(folder(UMBRELLA)), *WHERE, "--reset-values", REGISTRY)
CRDS = (
    "customresourcedefinition.apiextensions.k8s.io/computedomaincliques.resource.nvidia.com",
    "customresourcedefinition.apiextensions.k8s.io/computedomains.resource.nvidia.com",
)


@pytest.fixture(scope="module")
def cluster(serving: Callable[..., Cluster]) -> Cluster:
    return serving()


@pytest.fixture
def upgraded(cluster: Cluster, tmp_path: Path) -> Iterator[tuple[Cluster, tuple[str, ...]]]:
    """A release that was upgraded from 0.1.0, and the arguments of the way back."""
    chart = str(folder(UMBRELLA, former_charts.write(RELEASED, tmp_path)))
    done = cluster.helm("install", "nvdra", chart, *WHERE, "--create-namespace")
    assert done.returncode == 0, done.stderr
    assert cluster.helm(*NEW).returncode == 0
    yield cluster, ("upgrade", "nvdra", chart, *WHERE, "--reset-values")
    cluster.helm("uninstall", "nvdra", *WHERE)


def test_an_upgrade_with_the_chart_of_the_release_goes_back(
    upgraded: tuple[Cluster, tuple[str, ...]],
) -> None:
    cluster, back = upgraded
    check_goes_back(cluster, back)
    assert cluster.helm(*NEW).returncode == 0


def test_after_a_failed_rollback_the_way_back_leads_over_the_new_chart(
    upgraded: tuple[Cluster, tuple[str, ...]],
) -> None:
    cluster, back = upgraded
    for words in ("no CustomResourceDefinition with the name", "maxSurge: Invalid value"):
        done = cluster.helm("rollback", "nvdra", "1", *WHERE)
        assert words in done.stderr
    assert cluster.helm(*back).returncode != 0
    assert cluster.helm(*NEW).returncode == 0
    check_goes_back(cluster, back)


def check_goes_back(cluster: Cluster, back: tuple[str, ...]) -> None:
    """Go back, and check that nothing of the later version is left."""
    done = cluster.helm(*back)
    assert done.returncode == 0, done.stderr
    kinds = "validatingadmissionpolicies,validatingadmissionpolicybindings"
    policies = cluster.kubectl("get", kinds, "-o", "name").stdout.split()
    manifest = cluster.helm("get", "manifest", "nvdra", *WHERE).stdout
    assert len(policies) == manifest.count("kind: ValidatingAdmissionPolicy")
    assert tuple(cluster.kubectl("get", "crds", "-o", "name").stdout.split()) == CRDS
