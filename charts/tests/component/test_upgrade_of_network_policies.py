# SPDX-License-Identifier: Apache-2.0
"""The network policy that earlier releases had for the daemons of all domains, at an upgrade.

The API server has no network plugin: what is compared are objects.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nvdra_testing.charts import FROM_REGISTRY

Cluster = Any  # conftest.Cluster; a conftest cannot be imported

NAMESPACE = "nvdra-system"
NAME = "nvdra-nvdra-cd-controller-daemons"
ON = "--set=daemon.networkPolicy.enabled=true"
OF_AN_EARLIER_RELEASE = """
{{- if .Values.daemon.networkPolicy.enabled }}
{{- $exists := dict "key" "resource.nvidia.com/computeDomain" "operator" "Exists" }}
{{- $daemons := dict "matchExpressions" (list $exists) }}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "nvdra.fullname" . }}-daemons
  namespace: {{ .Release.Namespace }}
spec:
  podSelector: {{ toJson $daemons }}
  ingress:
    - from: [{podSelector: {{ toJson $daemons }}}]
{{- end }}
"""


@pytest.fixture(scope="module")
def cluster(serving: Callable[..., Cluster]) -> Cluster:
    return serving()


def policies(cluster: Cluster) -> list[str]:
    done = cluster.kubectl("get", "networkpolicies", "-n", NAMESPACE, "-o", "json")
    assert done.returncode == 0, done.stderr
    return sorted(item["metadata"]["name"] for item in json.loads(done.stdout)["items"])


@pytest.mark.parametrize("is_kept", [False, True])
def test_an_upgrade_removes_the_policy_of_all_domains_unless_it_is_to_be_kept(
    cluster: Cluster, tmp_path: Path, is_kept: bool
) -> None:
    chart, earlier = cluster.charts / "nvdra" / "charts" / "nvdra-cd-controller", tmp_path / "chart"
    shutil.copytree(chart, earlier)  # the linked templates become files
    (earlier / "templates" / "daemons-policy.yaml").write_text(OF_AN_EARLIER_RELEASE)
    where = ("-n", NAMESPACE, "--create-namespace", FROM_REGISTRY, ON)
    done = cluster.helm("upgrade", "--install", "nvdra", str(earlier), *where)
    assert done.returncode == 0, done.stderr
    assert policies(cluster) == [NAME]
    if is_kept:
        keep = ("annotate", "networkpolicy", NAME, "helm.sh/resource-policy=keep")
        assert cluster.kubectl("-n", NAMESPACE, *keep).returncode == 0

    done = cluster.helm("upgrade", "nvdra", str(chart), *where)
    assert done.returncode == 0, done.stderr
    assert policies(cluster) == ([NAME] if is_kept else [])
    assert cluster.helm("uninstall", "nvdra", "-n", NAMESPACE).returncode == 0
    cluster.kubectl("-n", NAMESPACE, "delete", "networkpolicies", "--all")
