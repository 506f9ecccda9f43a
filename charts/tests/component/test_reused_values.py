# SPDX-License-Identifier: Apache-2.0
"""`helm upgrade --reuse-values`, and its successor, from the charts that clusters have today."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nvdra_testing import former_charts, yaml_documents
from nvdra_testing.charts import COMPONENTS, UMBRELLA, folder
from nvdra_testing.former_charts import FormerState

Cluster = Any  # conftest.Cluster; a conftest cannot be imported

WHERE = ("--namespace", "nvdra-system")
HOW = ("--reuse-values", "--reset-then-reuse-values")
FLAGS = {
    UMBRELLA: ("--set=nvdra-gpu-plugin.kubeletPlugin.nodeSelector.gpus=yes",),
    "nvdra-gpu-plugin": ("--set=kubeletPlugin.nodeSelector.gpus=yes",),
}
GATE = "--set=global.featureGates.DynamicMIG=true"
WEBHOOK = ("--set=webhook.enabled=true", "--set=webhook.tls.mode=self-managed")
ALONE = {"nvdra-webhook": ("--set=tls.mode=self-managed",)}


@pytest.fixture(scope="module")
def cluster(serving: Callable[..., Cluster]) -> Cluster:
    return serving()


@pytest.fixture
def uninstalled(cluster: Cluster) -> Iterator[Cluster]:
    yield cluster
    cluster.helm("uninstall", "nvdra", *WHERE)


UPGRADES = [
    pytest.param(state, chart, id=f"{chart}-from-{state.name}")
    for state in former_charts.STATES
    for chart in (UMBRELLA, *COMPONENTS)
    if chart in state.charts
]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("state", "chart"), UPGRADES)
def test_an_upgrade_takes_the_values_of_the_former_charts(
    uninstalled: Cluster, tmp_path: Path, state: FormerState, chart: str, how: str
) -> None:
    """The command of the pages on tasks: a feature gate is switched on, and the rest stays."""
    helm = uninstalled.helm
    own = [*FLAGS.get(chart, ()), *ALONE.get(chart, ())]
    if chart == UMBRELLA and "nvdra-webhook" in state.charts:
        own += WEBHOOK
    then = folder(chart, former_charts.write(state, tmp_path))
    done = helm("install", "nvdra", str(then), *WHERE, "--create-namespace", *own)
    assert done.returncode == 0, done.stderr

    done = helm("upgrade", "nvdra", str(folder(chart)), *WHERE, how, GATE)
    assert done.returncode == 0, done.stderr
    # It was installed when the charts accepted that.
    assert "come from docker.io/nvdra, a name that this project does not own" in done.stdout
    assert "Push them to a registry of your own, and set global.imageRegistry" in done.stdout
    manifest = helm("get", "manifest", "nvdra", *WHERE).stdout
    items = [item for item in yaml_documents.load_all(manifest) if item]
    pods = {
        item["metadata"]["labels"]["app.kubernetes.io/name"]: item["spec"]["template"]["spec"]
        for item in items
        if item["kind"] in ("DaemonSet", "Deployment")
    }
    assert pods
    for pod in pods.values():
        environment = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
        assert environment["FEATURE_GATES"] == "DynamicMIG=true"
    if chart in FLAGS:
        selector = {"gpus": "yes", "kubernetes.io/os": "linux"}
        assert pods["nvdra-gpu-plugin"]["nodeSelector"] == selector
    # The umbrella's part has the name that its values have.
    is_served = bool({"webhook", "nvdra-webhook"} & set(pods))
    assert is_served == (chart == "nvdra-webhook" or WEBHOOK[0] in own)
