# SPDX-License-Identifier: Apache-2.0
"""Rules, dashboard and monitors: valid, about metrics that exist, and off by default."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from nvdra_api.errors import Reason
from nvdra_api.ids import NodeName
from nvdra_cd_controller.metrics import DomainMetrics
from nvdra_imex_daemon.metrics import ImexMetrics
from nvdra_runtime.telemetry.metrics.plugin_metrics import PluginMetrics
from nvdra_testing import promtool as promtool_program
from nvdra_testing import yaml_documents
from prometheus_client import CollectorRegistry

Objects = dict[str, dict[str, Any]]

ON = {
    "global": {"podMonitors": {"enabled": True, "labels": {"release": "prometheus"}}},
    "monitoring": {
        "rules": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboard": {"enabled": True, "annotations": {"grafana_folder": "GPUs"}},
    },
}
OF_PROMQL = {
    "or",
    "offset",
    "sum",
    "max",
    "by",
    "rate",
    "increase",
    "histogram_quantile",
    "and",
    "on",
    "unless",
}
OF_A_SCRAPE = {"node", "pod", "namespace"}
"""Labels that the PodMonitors add to every series, besides `le` of histograms."""

# For each alert a series with which it fires: the series, its values, and after how long.
FIRING = {
    "NvdraPreparesFail": (
        'nvdra_claim_operation_seconds_count{driver="gpu.nvidia.com",node="a",operation="prepare",'
        'outcome="permanent",reason="DeviceUnhealthy"}',
        "0+1x60",
        "15m",
    ),
    "NvdraInternalError": (
        'nvdra_claim_operation_seconds_count{driver="gpu.nvidia.com",node="a",operation="prepare",'
        'outcome="internal",reason="Internal"}',
        "0 1x100",
        "30m",
    ),
    "NvdraTaskFails": (
        'nvdra_task_failures_total{node="a",pod="p",task="events"}',
        "_ 1x100",
        "5m",
    ),
    "NvdraStateNotWritable": (
        'nvdra_claim_operation_seconds_count{driver="gpu.nvidia.com",node="a",operation="prepare",'
        'outcome="retryable",reason="StateUnavailable"}',
        "0+1x60",
        "10m",
    ),
    "NvdraPreparesSlow": (
        'nvdra_claim_operation_seconds_bucket{driver="gpu.nvidia.com",node="a",operation="prepare",'
        'le="30"}',
        "0+2x60",
        "25m",
    ),
    "NvdraLockWaits": (
        'nvdra_lock_wait_seconds_bucket{driver="gpu.nvidia.com",node="a",le="30"}',
        "0+2x60",
        "20m",
    ),
    "NvdraApiServerFails": (
        'nvdra_api_requests_seconds_count{node="a",pod="p",verb="GET",code="403"}',
        "0+5x60",
        "15m",
    ),
    "NvdraDevicesUnhealthy": (
        'nvdra_devices{driver="gpu.nvidia.com",node="a",device_kind="gpu",state="tainted"}',
        "1x60",
        "10m",
    ),
    "NvdraNvmlReleased": ('nvdra_nvml_released{driver="gpu.nvidia.com",node="a"}', "1x200", "130m"),
    "NvdraDomainLacksNodes": (
        'nvdra_compute_domain_members{namespace="n",state="lacking"}',
        "2x60",
        "20m",
    ),
    "NvdraDomainsFail": ('nvdra_workqueue_failing{namespace="n"}', "1x60", "15m"),
    "NvdraImexRestarts": ('nvdra_imex_restarts_total{node="a",reason="exit"}', "0+1x60", "15m"),
}
# With these values, which are those of a quiet day, no alert fires.
QUIET = {
    'nvdra_claim_operation_seconds_count{driver="gpu.nvidia.com",node="a",operation="prepare",'
    'outcome="success",reason=""}': "0+9x200",
    'nvdra_claim_operation_seconds_count{driver="gpu.nvidia.com",node="a",operation="prepare",'
    'outcome="permanent",reason="InvalidConfig"}': "0+9x200",
    'nvdra_claim_operation_seconds_bucket{driver="gpu.nvidia.com",node="a",operation="prepare",'
    'le="0.1"}': "0+9x200",
    'nvdra_claim_operation_seconds_bucket{driver="gpu.nvidia.com",node="a",operation="prepare",'
    'le="+Inf"}': "0+9x200",
    'nvdra_api_requests_seconds_count{node="a",pod="p",verb="GET",code="200"}': "0+99x200",
    'nvdra_api_requests_seconds_count{node="a",pod="p",verb="PUT",code="409"}': "0+99x200",
    'nvdra_devices{driver="gpu.nvidia.com",node="a",device_kind="gpu",state="healthy"}': "8x200",
    'nvdra_devices{driver="gpu.nvidia.com",node="a",device_kind="gpu",state="unhealthy"}': "0x200",
    'nvdra_nvml_released{driver="gpu.nvidia.com",node="a"}': "0x200",
    'nvdra_compute_domain_members{namespace="n",state="lacking"}': "0x200",
    'nvdra_workqueue_failing{namespace="n"}': "0x200",
    'nvdra_task_failures_total{node="a",pod="p",task="events"}': "1x200",
    'nvdra_imex_restarts_total{node="a",reason="exit"}': "1x200",
}


@pytest.fixture(scope="session")
def promtool() -> Path:
    return promtool_program.path()


@pytest.fixture(scope="session")
def rules(charts: Path) -> Path:
    return charts / "nvdra" / "files" / "rules.yaml"


@pytest.fixture(scope="session")
def dashboard(charts: Path) -> Any:
    return json.loads((charts / "nvdra" / "files" / "dashboard.json").read_text())


@pytest.fixture(scope="session")
def known() -> dict[str, set[str]]:
    """The labels of every series that a component exports, by the name of the series."""
    plugin = PluginMetrics(driver="gpu.nvidia.com", node=NodeName("a"))
    controller, daemon = DomainMetrics(), CollectorRegistry()
    ImexMetrics(daemon)
    controller.register_gauges(lambda: (), lambda: (0, 0))
    found: dict[str, set[str]] = {}
    for registry in (plugin.registry, controller.registry, daemon):
        for collector in registry._collector_to_names:
            labels = set(getattr(collector, "_labelnames", ()))
            for metric in collector.collect():
                found |= dict.fromkeys(_series(metric.name, metric.type), labels)
                for sample in metric.samples:
                    found.setdefault(sample.name, set()).update(sample.labels)
    return found


def _series(name: str, kind: str) -> Iterator[str]:
    if kind == "histogram":
        yield from (f"{name}_{each}" for each in ("bucket", "count", "sum"))
    else:
        yield f"{name}_total" if kind == "counter" else name


def alerts(rules: Path) -> list[dict[str, Any]]:
    return [
        rule
        for group in yaml_documents.load(rules.read_text())["groups"]
        for rule in group["rules"]
    ]


def queries(dashboard: Any) -> list[str]:
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    variables = [
        re.sub(r"label_values\((.*), (\w+)\)", r"sum by (\2) (\1)", each["query"]["query"])
        for each in dashboard["templating"]["list"]
        if each["type"] == "query"
    ]
    return [*panels, *variables]


def in_promql(query: str) -> str:
    """A query of the dashboard as Prometheus gets it from Grafana."""
    return query.replace("$__rate_interval", "5m").replace("$driver", ".*").replace("$node", ".*")


def selectors(query: str) -> Iterator[tuple[str, set[str]]]:
    """Each series in a query, with the labels that are selected."""
    for name, matchers in re.findall(r"\b([a-z_]+)(?:\{([^}]*)\})?(?=[\[\s){]|$)", query):
        if name.startswith("nv"):
            yield name, set(re.findall(r"(\w+)\s*[=!]", re.sub(r'"[^"]*"', '""', matchers)))


def test_everything_is_off_by_default(render: Callable[..., Objects]) -> None:
    objects = render("nvdra")
    assert not {"PodMonitor", "PrometheusRule", "PodDisruptionBudget"} & set(objects)
    assert "ConfigMap" not in objects


def test_values_of_a_release_without_monitoring_are_taken(render: Callable[..., Objects]) -> None:
    # helm upgrade --reuse-values takes the umbrella's values from the release before.
    before = {"monitoring": None, "global": {"podMonitors": None}}
    assert render("nvdra", before) == render("nvdra")


def test_every_component_with_metrics_has_its_monitor(render: Callable[..., Objects]) -> None:
    objects = render("nvdra", ON)
    monitors = objects["PodMonitor"]
    pods = {
        name: each["spec"]["template"]["metadata"]["labels"]
        for name, each in (objects["DaemonSet"] | objects["Deployment"]).items()
    }
    daemons = monitors.pop("nvdra-nvdra-cd-controller-daemons")
    (expression,) = daemons["spec"]["selector"]["matchExpressions"]
    assert expression == {"key": "resource.nvidia.com/computeDomain", "operator": "Exists"}
    assert daemons["spec"]["namespaceSelector"] == {"matchNames": ["nvdra-system"]}
    assert set(monitors) == set(pods)
    for name, monitor in monitors.items():
        assert monitor["spec"]["selector"]["matchLabels"].items() <= pods[name].items()
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert (endpoint["port"], endpoint["path"]) == ("http", "/metrics")


def test_a_component_without_metrics_has_no_monitor(render: Callable[..., Objects]) -> None:
    off = {"metrics": {"enabled": False}}
    values = ON | {
        "nvdra-gpu-plugin": {"kubeletPlugin": off},
        "nvdra-cd-plugin": {"kubeletPlugin": off},
        "nvdra-cd-controller": {"controller": off, "daemon": off},
    }
    assert "PodMonitor" not in render("nvdra", values)


def test_rules_and_dashboard_are_installed_as_they_are_in_the_files(
    render: Callable[..., Objects], rules: Path, dashboard: Any
) -> None:
    objects = render("nvdra", ON)
    (rule,) = objects["PrometheusRule"].values()
    assert rule["spec"] == yaml_documents.load(rules.read_text())
    (config,) = objects["ConfigMap"].values()
    assert json.loads(config["data"]["nvdra.json"]) == dashboard
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert config["metadata"]["annotations"] == {"grafana_folder": "GPUs"}


def test_replicas_are_spread_and_drained_one_at_a_time(render: Callable[..., Objects]) -> None:
    objects = render("nvdra", {"nvdra-cd-controller": {"controller": {"replicas": 2}}})
    (deployment,) = objects["Deployment"].values()
    (budget,) = objects["PodDisruptionBudget"].values()
    (spread,) = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
    selector = deployment["spec"]["selector"]
    assert budget["spec"]["selector"] == spread["labelSelector"] == selector
    assert budget["spec"]["maxUnavailable"] == 1


def test_promtool_accepts_the_rules(promtool: Path, rules: Path) -> None:
    done = subprocess.run([promtool, "check", "rules", rules], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"{len(alerts(rules))} rules found" in done.stdout


def test_promtool_accepts_every_query_of_the_dashboard(
    promtool: Path, dashboard: Any, tmp_path: Path
) -> None:
    found = queries(dashboard)
    assert len(found) > 15
    recorded = [
        {"record": f"query:{index}", "expr": in_promql(query)} for index, query in enumerate(found)
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    done = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_metric_and_label_exists(
    rules: Path, dashboard: Any, known: dict[str, set[str]]
) -> None:
    for query in [*(rule["expr"] for rule in alerts(rules)), *map(in_promql, queries(dashboard))]:
        found = dict(selectors(query))
        bare = re.sub(r'\{[^}]*\}|"[^"]*"|by \([^)]*\)|\[\w+\]', " ", query)
        assert set(re.findall(r"[a-zA-Z_]\w+", bare)) <= {*found, *OF_PROMQL}, query
        assert found, query
        grouped = {
            label.strip()
            for text in re.findall(r"by \(([^)]*)\)", query)
            for label in text.split(",")
        }
        for name, labels in found.items():
            assert name in known, query
            assert labels | grouped <= known[name] | OF_A_SCRAPE | {"le"}, query


def test_selected_values_are_those_that_components_set(rules: Path) -> None:
    reasons = re.findall(r"reason[=!]~?\"([^\"]+)\"", rules.read_text())
    assert {name for text in reasons for name in text.split("|")} <= set(map(str, Reason))


@pytest.mark.parametrize("alert", sorted(FIRING))
def test_an_alert_fires_on_its_series_and_not_on_a_quiet_day(
    promtool: Path, rules: Path, tmp_path: Path, alert: str
) -> None:
    series, values, after = FIRING[alert]
    firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    any_firing = 'count(ALERTS{alertstate="firing"})'
    inf = series.replace('le="30"', 'le="+Inf"')
    loud = [{"series": each, "values": values} for each in dict.fromkeys((series, inf))]
    quiet = [{"series": each, "values": values} for each, values in QUIET.items()]
    if "_bucket" in series:  # nothing is as fast as the next smaller bucket
        loud.append({"series": series.replace('le="30"', 'le="20"'), "values": "0x60"})
    tests = [
        _case(loud, firing, "0m", []),
        _case(loud, firing, after, [{"labels": "{}", "value": 1}]),
        _case(quiet, any_firing, "150m", []),
    ]
    file = tmp_path / "test.yaml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests})
    )
    done = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _case(
    series: list[dict[str, str]], query: str, at: str, samples: list[dict[str, Any]]
) -> dict[str, Any]:
    test = {"expr": query, "eval_time": at, "exp_samples": samples}
    return {"interval": "1m", "input_series": series, "promql_expr_test": [test]}


def test_every_alert_is_tried(rules: Path) -> None:
    assert {rule["alert"] for rule in alerts(rules)} == set(FIRING)
    for rule in alerts(rules):
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
