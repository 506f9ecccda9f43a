# SPDX-License-Identifier: Apache-2.0
"""A Prometheus that scrapes the pods of a lab, as the operator would by the charts' PodMonitors.

It reaches the pods through the API server, with the administrator's certificate.
"""

import base64
import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nvdra_testing import ports, promtool, yaml_documents
from nvdra_testing.cluster.installation import CHART, NAMESPACE, Cluster

INTERVAL_S = 2
RULES = CHART / "files/rules.yaml"
PORT_NAME = "http"

Json = dict[str, Any]


@dataclass(frozen=True)
class Prometheus:
    """A running server."""

    url: str

    def query(self, expression: str) -> list[Json]:
        """The samples of an expression now."""
        found = self._get("query", query=expression)
        result: list[Json] = found["result"]
        return result

    def alerting_rules(self) -> list[Json]:
        """Every rule, with its health and last error."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def targets(self) -> list[Json]:
        """What is scraped, with its health and last error."""
        active: list[Json] = self._get("targets")["activeTargets"]
        return active

    def _get(self, what: str, **parameters: str) -> Json:
        url = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            data: Json = json.load(answer)["data"]
            return data


@contextmanager
def scraping(cluster: Cluster, directory: Path) -> Iterator[Prometheus]:
    """Scrape all pods of the driver that there are now, until the block ends."""
    (port,) = ports.free_ports(1)
    rules = yaml_documents.load(RULES.read_text())
    for group in rules["groups"]:
        group["interval"] = f"{INTERVAL_S}s"
    (directory / "rules.yaml").write_text(yaml.safe_dump(rules))
    config = directory / "prometheus.yaml"
    config.write_text(yaml.safe_dump(_config(cluster, directory)))
    argv = [
        str(promtool.path("prometheus")),
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (
        (directory / "prometheus.log").open("wb") as log,
        subprocess.Popen(argv, stdout=log, stderr=log) as process,
    ):
        try:
            yield Prometheus(f"http://127.0.0.1:{port}")
        finally:
            process.terminate()


def _config(cluster: Cluster, directory: Path) -> Json:
    kubeconfig = yaml_documents.load(cluster.kubectl.kubeconfig.read_text())
    user, place = kubeconfig["users"][0]["user"], kubeconfig["clusters"][0]["cluster"]
    files = {
        "ca_file": place["certificate-authority-data"],
        "cert_file": user["client-certificate-data"],
        "key_file": user["client-key-data"],
    }
    for name, content in files.items():
        (directory / name).write_bytes(base64.b64decode(content))
    return {
        "global": {"scrape_interval": f"{INTERVAL_S}s", "evaluation_interval": f"{INTERVAL_S}s"},
        "rule_files": [str(directory / "rules.yaml")],
        "scrape_configs": [
            {
                "job_name": "nvdra",
                "scheme": "https",
                "honor_labels": True,
                "tls_config": {name: str(directory / name) for name in files},
                "static_configs": list(_targets(cluster, place["server"])),
            }
        ],
    }


def _targets(cluster: Cluster, server: str) -> Iterator[Json]:
    for pod in cluster.driver_namespace.get("pods"):
        name = pod["metadata"]["name"]
        for container in pod["spec"]["containers"]:
            for port in container.get("ports", []):
                if port.get("name") == PORT_NAME:
                    where = f"{name}:{port['containerPort']}"
                    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{where}/proxy/metrics"
                    labels = {
                        "__metrics_path__": path,
                        "namespace": NAMESPACE,
                        "node": pod["spec"]["nodeName"],
                        "pod": name,
                    }
                    yield {"targets": [server.removeprefix("https://")], "labels": labels}
