# SPDX-License-Identifier: Apache-2.0
"""Manifests that are rendered without a cluster and applied by other tools than helm."""

import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nvdra_testing import yaml_documents
from nvdra_testing.charts import FROM_REGISTRY, folder

Cluster = Any  # conftest.Cluster; a conftest cannot be imported

FIRST = (FROM_REGISTRY,)
OTHER = (
    FROM_REGISTRY,
    "--set=nvdra-gpu-plugin.deviceClasses.migExtendedResources={1g.10gb}",
    "--set=global.featureGates.DynamicMIG=true",
    "--set=webhook.enabled=true",
    "--set=webhook.tls.mode=self-managed",
    "--set=nvdra-cd-controller.crds.install=never",
)
APPLY = {
    "apply": ("apply",),
    "server-side apply": ("apply", "--server-side"),
}
WRITTEN_BY_THE_WEBHOOK = re.compile(r"caBundle|tls\.(crt|key)|ca\.(crt|key)")


@pytest.fixture(scope="module")
def cluster(serving: Callable[..., Cluster]) -> Cluster:
    made = serving()
    assert made.kubectl("create", "namespace", "nvdra-system").returncode == 0
    return made


def rendered(cluster: Cluster, *flags: str) -> str:
    how = ("--namespace", "nvdra-system", "--kube-version", "1.36.3", *flags)
    done = cluster.helm("template", "nvdra", str(folder("nvdra")), *how)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def written(tmp_path: Path, text: str) -> str:
    file = tmp_path / "manifests.yaml"
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize("how", APPLY)
def test_manifests_are_applied_twice_with_other_values_and_do_not_differ_afterwards(
    cluster: Cluster, tmp_path: Path, how: str
) -> None:
    """Also with the test of the release in them, which `--skip-tests` leaves out."""
    for flags in (FIRST, OTHER, FIRST):
        file = written(tmp_path, rendered(cluster, *flags))
        done = cluster.kubectl(*APPLY[how], "-f", file)
        assert done.returncode == 0, done.stderr
        diff = cluster.kubectl("diff", *APPLY[how][1:], "-f", file)
        assert diff.returncode == 0, diff.stdout
    assert (
        cluster.kubectl(
            "delete", "-f", written(tmp_path, rendered(cluster, *OTHER)), "--ignore-not-found"
        ).returncode
        == 0
    )


def test_manifests_are_replaced(cluster: Cluster, tmp_path: Path) -> None:
    file = written(tmp_path, rendered(cluster, "--skip-tests", *OTHER))
    for verb in ("create", "replace", "replace"):
        done = cluster.kubectl(verb, "-f", file)
        assert done.returncode == 0, done.stderr
    assert cluster.kubectl("delete", "-f", file).returncode == 0


def test_without_tests_no_pod_and_no_rights_of_one_are_rendered(cluster: Cluster) -> None:
    text = rendered(cluster, "--skip-tests", *OTHER)
    names = {item["metadata"]["name"] for item in yaml_documents.load_all(text) if item}
    assert "nvdra-test" not in names
    assert "helm.sh/hook" not in text


def test_the_documented_list_has_every_image(cluster: Cluster) -> None:
    page = (folder("nvdra").parents[1] / "docs" / "gitops.md").read_text()
    (command,) = re.findall(r"```sh\n(helm template [^`]+sort -u)\n```", page)
    with_all = command.replace("--skip-tests", shlex.join(("--skip-tests", *OTHER[1:])))
    programs = f"{Path(cluster.helm_program).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", with_all],
        cwd=folder("nvdra").parents[1],
        env={**os.environ, "PATH": programs},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    listed = {line.rpartition("/")[2] for line in done.stdout.splitlines()}
    assert {image.partition(":")[0] for image in listed} == {
        "nvdra-gpu-plugin",
        "nvdra-cd-plugin",
        "nvdra-cd-controller",
        "nvdra-imex-daemon",
        "nvdra-webhook",
    }
