# SPDX-License-Identifier: Apache-2.0
"""`helm upgrade --reuse-values` from every former state: values that it lacks are no error.

helm then takes the former chart's values instead of the new chart's own. Only the parts of the
umbrella chart still bring theirs.
"""

import copy
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from nvdra_testing import former_charts, yaml_documents
from nvdra_testing.charts import CHARTS, COMPONENTS, UMBRELLA, folder
from nvdra_testing.former_charts import FormerState

KUBE = "1.36.3"
ON: dict[str, Any] = {
    "nvdra": {
        "global": {"podMonitors": {"enabled": True}, "featureGates": {"DynamicMIG": True}},
        "monitoring": {"rules": {"enabled": True}, "dashboard": {"enabled": True}},
        "webhook": {"enabled": True},
    },
}
"""What a user may set at the upgrade: it makes the templates read more values."""
ON_ALONE = {"global": {"podMonitors": {"enabled": True}}}

KEPT_OUT = {
    # Null is how a user does without it, and helm makes that the same as a value that is not there.
    "controller.topologySpreadConstraints",
    # The former value stands: a plugin that is not read-only, and a rollout without a surge.
    "kubeletPlugin.containers.gpus.securityContext.readOnlyRootFilesystem",
    "kubeletPlugin.containers.computeDomains.securityContext.readOnlyRootFilesystem",
    "kubeletPlugin.updateStrategy.rollingUpdate.maxSurge",
    # A reused `resources` has no limit of memory, which can be a choice.
    "containers.webhook.resources.limits",
    "containers.webhook.resources.requests",
    "controller.resources.limits",
    "controller.resources.requests",
    "daemon.resources.limits",
    "daemon.resources.requests",
    "kubeletPlugin.containers.computeDomains.resources.limits",
    "kubeletPlugin.containers.computeDomains.resources.requests",
    "kubeletPlugin.containers.gpus.resources.limits",
    "kubeletPlugin.containers.gpus.resources.requests",
}
"""New values without which the objects differ."""

Values = dict[str, Any]
Upgrade = Callable[..., str]


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The charts of each former state, by its name."""
    return {
        state.name: former_charts.write(state, tmp_path_factory.mktemp("former"))
        for state in former_charts.STATES
    }


@pytest.fixture
def upgrade(helm: str, tmp_path: Path) -> Upgrade:
    """Render a chart of this state with other values in the place of its own."""

    def rendered(chart: str, own: Values, values: Values) -> str:
        place = tmp_path / chart
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder(chart), place)
        (place / "values.yaml").write_text(yaml.safe_dump(own))
        argv = (helm, "template", "nvdra", str(place), "--is-upgrade", "--namespace=nvdra-system")
        done = subprocess.run(
            (*argv, f"--kube-version={KUBE}", "--values=-"),
            input=yaml.safe_dump(values),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return rendered


def own_values(place: Path) -> Values:
    values: Values = yaml_documents.load((place / "values.yaml").read_text())
    return values


def coalesced(chart: str, charts: Path) -> Values:
    """The values with which a chart without a user's is installed, those of its parts included."""
    place = folder(chart, charts)
    values = own_values(place)
    described = yaml_documents.load((place / "Chart.yaml").read_text())
    for part in described.get("dependencies", []):
        name = part.get("alias", part["name"])
        own = own_values(folder(part["name"], charts))
        values[name] = merged(own, {**values.get(name, {}), "global": values["global"]})
    return values


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> Values:
    """The keys of both; those of `above` win."""
    both = {key: copy.deepcopy(value) for key, value in below.items()}
    for key, value in above.items():
        is_table = isinstance(value, Mapping) and isinstance(both.get(key), Mapping)
        both[key] = merged(both[key], value) if is_table else copy.deepcopy(value)
    return both


def additions(before: Values, now: Values, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of what was added: a table that is new is one path."""
    for key, value in now.items():
        if key not in before:
            yield (*path, key)
        elif isinstance(value, dict) and isinstance(before[key], dict):
            yield from additions(before[key], value, (*path, key))


def without(values: Values, path: tuple[str, ...]) -> Values:
    rest = copy.deepcopy(values)
    table = rest
    for key in path[:-1]:
        table = table[key]
    del table[path[-1]]
    return rest


CHARTS_THEN = [
    pytest.param(state, chart, id=f"{chart}-from-{state.name}")
    for state in former_charts.STATES
    for chart in (UMBRELLA, *COMPONENTS)
    if chart in state.charts
]


@pytest.mark.parametrize(("state", "chart"), CHARTS_THEN)
@pytest.mark.parametrize("is_more", [False, True], ids=["as-it-was", "with-more"])
def test_the_values_of_a_former_state_are_taken(
    former: dict[str, Path], upgrade: Upgrade, state: FormerState, chart: str, is_more: bool
) -> None:
    values = ON.get(chart, ON_ALONE) if is_more else {}
    assert "<no value>" not in upgrade(chart, coalesced(chart, former[state.name]), values)


@pytest.mark.parametrize("chart", [UMBRELLA, *COMPONENTS])
def test_each_value_that_a_former_state_lacks_has_its_default_without_it(
    former: dict[str, Path], upgrade: Upgrade, chart: str
) -> None:
    state = next(state for state in former_charts.STATES if chart in state.charts)
    own = own_values(folder(chart))
    values = ON.get(chart, ON_ALONE)
    added = sorted(additions(own_values(folder(chart, former[state.name])), own))
    wanted = upgrade(chart, own, values)
    for path in added:
        if ".".join(path) in KEPT_OUT:
            continue
        # What the user sets is there with its other keys missing.
        assert upgrade(chart, without(own, path), values) == wanted, ".".join(path)


def test_every_exception_is_a_value() -> None:
    paths = {
        ".".join(path) for chart in COMPONENTS for path in _paths(own_values(folder(chart, CHARTS)))
    }
    assert KEPT_OUT - paths == set()


def _paths(values: Values, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from _paths(value, (*above, key))
