# SPDX-License-Identifier: Apache-2.0
"""Prometheus scrapes the installation: rules and dashboard ask for what there is."""

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nvdra_testing.cluster import compute_domains, prometheus, workloads
from nvdra_testing.cluster.compute_domains import Domain
from nvdra_testing.cluster.installation import CHART, Cluster
from nvdra_testing.cluster.kubectl import Kubectl
from nvdra_testing.cluster.prometheus import Prometheus

DASHBOARD = CHART / "files/dashboard.json"
SCRAPED_S = 60
FILLED_IN = {"$driver": ".*", "$node": ".*", "$__rate_interval": "30s"}
ONLY_AFTER_FAILURES = ("Devices that became unfit", "Restarts of nvidia-imex")
"""Panels that show nothing as long as nothing goes wrong."""


@pytest.mark.soak("scrapes for a minute")
@pytest.mark.timeout(400, func_only=True)
def test_every_rule_and_panel_is_evaluated_and_has_data(
    cluster: Cluster, pods: Kubectl, tmp_path: Path
) -> None:
    domain = Domain(cluster, compute_domains.create_domain(pods, "ring"))
    compute_domains.run_on(pods, "ring", cluster.nodes()[:1])
    pods.apply(workloads.template("gpu", workloads.gpus("gpu")))
    pods.apply(workloads.pod("first", templates=["gpu"]))
    pods.wait_running("first")
    with prometheus.scraping(cluster, tmp_path) as server:
        cluster.kubectl.wait(partial(not_scraped, server), "every pod to be scraped")
        compute_domains.run_on(pods, "ring", cluster.nodes()[1:])  # rates need a change
        pods.apply(workloads.pod("second", templates=["gpu"]))
        time.sleep(SCRAPED_S)
        for rule in server.alerting_rules():
            assert (rule["health"], rule.get("lastError", "")) == ("ok", ""), rule["name"]
        empty = [title for title, query in panels() if not server.query(query)]
    assert set(empty) <= set(ONLY_AFTER_FAILURES)
    pods.delete("pods", "--all")
    pods.delete("computedomain", "ring")
    domain.wait_gone()


def panels() -> list[tuple[str, str]]:
    """The title and the query of each panel, with everything chosen."""
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    found = []
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"]
            for variable, value in FILLED_IN.items():
                query = query.replace(variable, value)
            found.append((panel["title"], query))
    assert len(found) > 10
    return found


def not_scraped(server: Prometheus) -> str | None:
    """The pods whose metrics are not there, and why; None if there are none."""
    try:
        targets = server.targets()
    except OSError as error:  # it starts
        return str(error)
    missing = [f"{each['labels']['pod']}: {each}" for each in targets if each["health"] != "up"]
    return "; ".join(missing) or (None if targets else "no targets")
