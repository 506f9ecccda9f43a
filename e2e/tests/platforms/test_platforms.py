# SPDX-License-Identifier: Apache-2.0
"""The rows of docs/platforms.md, each on a lab that is like its platform.

First without what has to be done before the installation: `helm test` names what is lacking.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from nvdra_lab.kubernetes.platforms import PLATFORMS
from nvdra_testing import platform_page
from nvdra_testing.cluster import mps_daemons, workloads
from nvdra_testing.cluster.installation import GPU_PLUGIN, NAMESPACE, Cluster

PROFILE = "dgx-h100"
MPS = "--set=global.featureGates.MPSSupport=true"
MPS_PAIR = Path(__file__).parents[2] / "quickstarts/15-an-mps-pair.yaml"
WEBHOOK = (
    "--set=webhook.enabled=true",
    "--set=webhook.tls.mode=self-managed",
)


class Row(NamedTuple):
    """What an administrator does on a platform.

    Attributes:
        like: The name of the lab's platform.
        row: The name of its row on the page; empty: it has no flags.
        objects: What is created in the namespace of the drivers.
        values: A values file.
        lack: What `helm test` says without those objects; empty: nothing is needed.
    """

    like: str
    row: str = ""
    objects: tuple[dict[str, Any], ...] = ()
    values: dict[str, Any] | None = None
    lack: str = ""


PRIVILEGED = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {
        "name": NAMESPACE,
        "labels": {"pod-security.kubernetes.io/enforce": "privileged"},
    },
}
ROWS = (
    Row("gke", "GKE, Container-Optimized OS", (platform_page.QUOTA,), lack="insufficient quota"),
    Row("gke-ubuntu", "GKE, Ubuntu", (platform_page.QUOTA,), lack="insufficient quota"),
    Row("talos", "Talos 1.13 or later", (PRIVILEGED,), lack="violates PodSecurity"),
    Row("k0s", values=platform_page.MOVED_KUBELET),
    Row("openshift"),
)


def test_each_platform_of_the_lab_is_tried() -> None:
    assert {row.like for row in ROWS} == set(filter(None, PLATFORMS))


@pytest.mark.timeout(900)  # with the lab and its images
@pytest.mark.soak("each row takes a lab of its own")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.like)
def test_a_pod_has_its_gpu_with_what_the_page_says_to_add(
    run_lab: Callable[..., AbstractContextManager[Cluster]],
    request: pytest.FixtureRequest,
    tmp_path: Any,
    row: Row,
) -> None:
    name = f"{request.config.getoption('--lab')}-{row.like}"[:20].rstrip("-")
    like = PLATFORMS[row.like]
    flags = ("--like", row.like, "--runtime", like.runtime)
    with run_lab(name, PROFILE, GPU_PLUGIN, *flags) as cluster:
        values = tmp_path / "values.yaml"
        values.write_text(yaml.safe_dump(row.values or {}))
        given = [f"--values={values}", *(platform_page.FLAGS[row.row] if row.row else ())]
        given += [*WEBHOOK, MPS]
        cluster.kubectl.run("create", "namespace", NAMESPACE)
        if row.lack:
            cluster.start_installation(*given)
            status, lines = cluster.helm_test()
            assert status == 1
            assert any(row.lack in line for line in lines), lines
        for item in row.objects:
            cluster.driver_namespace.apply(item)
        cluster.install(*given)
        status, lines = cluster.helm_test()
        assert status == 0, lines
        with cluster.kubectl.fresh_namespace() as pods:
            pods.apply(workloads.template("one", workloads.gpus()))
            pods.apply(workloads.pod("p", templates=["one"]))
            pods.wait_running("p")
            seen = workloads.visible_gpus(pods, "p")
            assert len(seen.uuids) == 1
            pods.delete("pod", "p")
            pods.apply(MPS_PAIR)
            pods.wait_running("mps-a", "mps-b")
            for name in ("mps-a", "mps-b"):
                mps_daemons.wait_log(pods, name, "computing")
            pods.delete("pod", "mps-a", "mps-b")
