# SPDX-License-Identifier: Apache-2.0
"""Charts that are rendered without a cluster."""

import functools
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from nvdra_testing import yaml_documents
from nvdra_testing.charts import REGISTRY, folder

# A helm that was built from source takes itself for one of Kubernetes 1.20.
KUBE = "1.36.3"

Values = dict[str, Any]
Objects = dict[str, dict[str, Any]]
Template = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def template(helm: str, charts: Path) -> Template:
    @functools.cache
    def run(argv: tuple[str, ...], values: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(argv, input=values, capture_output=True, text=True, check=False)

    def rendered(
        chart: str,
        values: Values | None = None,
        *flags: str,
        release: str = "nvdra",
        namespace: str = "nvdra-system",
        kube: str = KUBE,
    ) -> subprocess.CompletedProcess[str]:
        argv = (helm, "template", release, str(folder(chart)), "--namespace", namespace)
        given = yaml.safe_dump(_with_registry(values or {}))
        return run((*argv, "--kube-version", kube, "--values", "-", *flags), given)

    return rendered


def _with_registry(values: Values) -> Values:
    """The values with a registry, unless they have an own one."""
    shared = values.get("global", {})
    if not isinstance(shared, dict):
        return values
    return {**values, "global": {"imageRegistry": REGISTRY, **shared}}


@pytest.fixture(scope="session")
def render(template: Template) -> Callable[..., Objects]:
    """Render what an installation makes of a chart with values: objects by kind and name."""

    def objects(chart: str, values: Values | None = None, *flags: str, **named: str) -> Objects:
        done = template(chart, values, *flags, **named)
        assert done.returncode == 0, done.stderr
        found: Objects = {}
        for item in yaml_documents.load_all(done.stdout):
            if item is not None and not _is_of_the_test(item):
                assert item["metadata"]["name"] not in found.setdefault(item["kind"], {})
                found[item["kind"]][item["metadata"]["name"]] = item
        return found

    return objects


@pytest.fixture(scope="session")
def render_test(template: Template) -> Callable[..., list[dict[str, Any]]]:
    """Render what `helm test` makes for its time."""

    def objects(chart: str, values: Values | None = None, *flags: str, **named: str) -> list[Any]:
        done = template(chart, values, *flags, **named)
        assert done.returncode == 0, done.stderr
        return [
            item for item in yaml_documents.load_all(done.stdout) if item and _is_of_the_test(item)
        ]

    return objects


def _is_of_the_test(item: dict[str, Any]) -> bool:
    return "helm.sh/hook" in (item["metadata"].get("annotations") or {})


@pytest.fixture(scope="session")
def refusal(template: Template) -> Callable[..., str]:
    """Render a chart with invalid values: the error of helm."""

    def text(chart: str, values: Values | None = None, *flags: str, **named: str) -> str:
        done = template(chart, values, *flags, **named)
        assert done.returncode != 0, done.stdout
        return done.stderr

    return text
