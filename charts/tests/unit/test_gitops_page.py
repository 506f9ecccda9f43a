# SPDX-License-Identifier: Apache-2.0
"""The commands and manifests of docs/gitops.md, as a reader takes them over."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nvdra_testing import yaml_documents
from nvdra_testing.charts import CHARTS, REGISTRY, image

Render = Callable[..., dict[str, dict[str, Any]]]

PAGE = (CHARTS.parent / "docs" / "gitops.md").read_text()
BLOCK = re.compile(r"^```(sh|yaml)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMANDS = [text for language, text in BLOCK.findall(PAGE) if language == "sh"]
MANIFESTS = [
    list(yaml_documents.load_all(text))
    for language, text in BLOCK.findall(PAGE)
    if language == "yaml"
]
LABELS = {"pod-security.kubernetes.io/enforce": "privileged"}


def command(word: str) -> str:
    """The one command of the page with this word."""
    (found,) = (text for text in COMMANDS if word in text)
    return str(found)


def printed(helm: str, script: str) -> str:
    path = f"{Path(helm).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", script],
        cwd=CHARTS.parent,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def images(node: Any) -> Iterator[str]:
    """Each `image` of a container, and each image in a variable of a program."""
    if isinstance(node, dict):
        yield from (node[key] for key in ("image", "value") if key in node)
        for value in node.values():
            yield from images(value)
    elif isinstance(node, list):
        for item in node:
            yield from images(item)


def test_manifests_are_rendered_without_a_cluster(helm: str) -> None:
    rendering, redirected, _ = command("> nvdra.yaml").partition("> nvdra.yaml")
    assert redirected
    kinds = {item["kind"] for item in yaml_documents.load_all(printed(helm, rendering))}
    assert {"DaemonSet", "Deployment", "DeviceClass"} <= kinds


def test_the_list_of_images_has_all_of_them_and_nothing_else(helm: str, render: Render) -> None:
    listed = printed(helm, command("sort -u")).splitlines()
    assert listed == [
        image("nvdra-cd-controller"),
        image("nvdra-cd-plugin"),
        image("nvdra-gpu-plugin"),
        image("nvdra-imex-daemon", "nvdra-cd-controller"),
    ]
    objects = render("nvdra", {}, "--skip-tests")
    pods = [*objects["DaemonSet"].values(), *objects["Deployment"].values()]
    assert {name for name in images(pods) if str(name).startswith(REGISTRY)} == set(listed)


def test_the_list_of_images_has_digests(helm: str) -> None:
    digest = f"sha256:{64 * 'a'}"
    given = f"--set nvdra-gpu-plugin.image.digest={digest} \\\n  | grep"
    assert command("sort -u").count("| grep") == 1
    listed = printed(helm, command("sort -u").replace("| grep", given)).splitlines()
    assert f"{image('nvdra-gpu-plugin')}@{digest}" in listed
    assert image("nvdra-gpu-plugin") not in listed


@pytest.mark.parametrize("flag", ["--kube-version", "--api-versions"])
def test_what_helm_cannot_ask_the_cluster_is_on_the_page(flag: str) -> None:
    assert f"`{flag}" in PAGE


def test_argo_cd_installs_the_umbrella_into_a_namespace_that_allows_it() -> None:
    (application,) = next(found for found in MANIFESTS if found[0]["kind"] == "Application")
    spec = application["spec"]
    assert (CHARTS.parent / spec["source"]["path"] / "Chart.yaml").is_file()
    assert spec["syncPolicy"]["managedNamespaceMetadata"]["labels"] == LABELS


def test_flux_applies_each_commit_to_a_namespace_that_allows_it() -> None:
    found = next(found for found in MANIFESTS if found[-1]["kind"] == "HelmRelease")
    namespace, repository, release = found
    chart = release["spec"]["chart"]["spec"]
    assert (CHARTS.parent / chart["chart"] / "Chart.yaml").is_file()
    assert chart["reconcileStrategy"] == "Revision"
    source = {"kind": repository["kind"], **repository["metadata"]}
    assert chart["sourceRef"] == source
    assert namespace["metadata"] == {"name": release["metadata"]["namespace"], "labels": LABELS}
