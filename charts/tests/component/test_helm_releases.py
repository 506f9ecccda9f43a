# SPDX-License-Identifier: Apache-2.0
"""Other releases of helm than that of all other tests: they render the same, and install it.

Each is built once, which takes minutes, so that only a soak does it. helm 4 installs by server-side
apply.
"""

import dataclasses
import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from nvdra_testing import yaml_documents
from nvdra_testing.charts import FROM_REGISTRY, folder

Cluster = Any  # conftest.Cluster; a conftest cannot be imported

RELEASES = ("3.8.2", "3.18.6", "4.3.2")
WHERE = ("--namespace", "nvdra-system")
SOME = (FROM_REGISTRY, "--set=webhook.enabled=true,webhook.tls.mode=self-managed")
OTHER = "--set=global.logVerbosity=2"

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800, func_only=False)]


@pytest.fixture(scope="module", params=RELEASES)
def other(request: pytest.FixtureRequest, helm_release: Callable[[str], str]) -> str:
    return helm_release(request.param)


@pytest.fixture(scope="module")
def cluster(serving: Callable[..., Cluster]) -> Cluster:
    made = serving()
    assert made.kubectl("create", "namespace", "nvdra-system").returncode == 0
    return made


@pytest.mark.parametrize("kube", ["1.32.0", "1.33.9", "1.36.3"])
def test_it_renders_the_same_objects(helm: str, other: str, kube: str) -> None:
    by_program = [rendered(program, kube) for program in (helm, other)]
    assert by_program[0] == by_program[1]


def rendered(program: str, kube: str) -> dict[str, Any]:
    """By kind, namespace and name."""
    argv = (program, "template", "nvdra", str(folder("nvdra")), *WHERE, *SOME)
    done = subprocess.run(
        (*argv, f"--kube-version={kube}"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = {}
    for item in yaml_documents.load_all(done.stdout):
        if item:
            metadata = item["metadata"]
            found[f"{item['kind']} {metadata.get('namespace')}/{metadata['name']}"] = item
    return found


def test_it_installs_changes_and_uninstalls(cluster: Cluster, other: str) -> None:
    own = dataclasses.replace(cluster, helm_program=other)
    chart = str(folder("nvdra"))
    for command in (
        ("install", "nvdra", chart, *WHERE, *SOME),
        ("upgrade", "nvdra", chart, *WHERE, *SOME, OTHER),
        ("rollback", "nvdra", "1", *WHERE),
    ):
        done = own.helm(*command)
        assert done.returncode == 0, done.stderr
    assert own.helm("uninstall", "nvdra", *WHERE).returncode == 0


def test_it_goes_on_with_a_release_of_the_usual_helm(cluster: Cluster, other: str) -> None:
    chart = str(folder("nvdra"))
    assert cluster.helm("install", "nvdra", chart, *WHERE, *SOME).returncode == 0
    own = dataclasses.replace(cluster, helm_program=other)
    done = own.helm("upgrade", "nvdra", chart, *WHERE, *SOME, OTHER)
    assert done.returncode == 0, done.stderr
    controller = own.kubectl("get", "deployment", "nvdra-nvdra-cd-controller", *WHERE, "-o", "json")
    (container,) = json.loads(controller.stdout)["spec"]["template"]["spec"]["containers"]
    assert {"name": "V", "value": "2"} in container["env"]
    assert own.helm("uninstall", "nvdra", *WHERE).returncode == 0
