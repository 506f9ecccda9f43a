# SPDX-License-Identifier: Apache-2.0
"""The files that `nvdra-migrate` reads."""

import json
import sys
import zlib
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, Final

from nvdra_migrate import command
from nvdra_migrate.reference_values import REFERENCE_VALUES

from nvdra_testing.fuzzing import documents, function_target


def _defaults() -> dict[str, Any]:
    """Every value of the reference's chart, with its default."""
    values: dict[str, Any] = {}
    for path, known in REFERENCE_VALUES.items():
        *parents, name = path.split(".")
        place = values
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = known.default
    return values


def migrated_values(case: bytes) -> None:
    """The command, with one form of its output or the other."""
    path = Path("values.yaml")
    path.write_bytes(case)
    output, errors = StringIO(), StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        code = command.run(["values", ("--json", "--all")[zlib.crc32(case) % 2], str(path)])
    assert code in (0, 1, 2)
    output.getvalue().encode()
    errors.getvalue().encode(errors=sys.stderr.errors or "strict")


_VALUES: Final = _defaults()
_SMALL: Final = {
    "gpuResourcesEnabledOverride": True,
    "featureGates": {"MPSSupport": True},
    "logVerbosity": "6",
    "webhook": {"enabled": True, "replicas": 2},
    "kubeletPlugin": {"containers": {"gpus": {"env": [{"name": "A", "value": "b"}]}}},
}
_CHART: Final = "nvidia-dra-driver-gpu"
_OBJECT: Final = {"apiVersion": "v1", "metadata": {"name": "dra", "namespace": "gpu"}}
_WRAPPED: Final = (
    {
        **_OBJECT,
        "kind": "HelmRelease",
        "spec": {
            "chart": {"spec": {"chart": _CHART}},
            "valuesFrom": [{"kind": "ConfigMap", "name": "a"}],
            "values": _SMALL,
        },
    },
    {
        **_OBJECT,
        "kind": "Application",
        "spec": {
            "source": {
                "repoURL": "a",
                "chart": _CHART,
                "helm": {
                    "values": json.dumps(_SMALL),
                    "parameters": [{"name": "controller.tolerations[0].key", "value": "{a,b}"}],
                    "valueFiles": ["a"],
                },
            }
        },
    },
    {
        **_OBJECT,
        "apiVersion": "helm.cattle.io/v1",
        "kind": "HelmChart",
        "spec": {"chart": _CHART, "valuesContent": json.dumps(_SMALL), "set": {"a.b": 1}},
    },
    {"releases": [{"name": "a", "chart": _CHART, "values": [_SMALL, "b"], "set": []}]},
    {"global": {"imageRegistry": "a"}, "charts": {_CHART: {"enabled": True, **_SMALL}}},
)

TARGETS: Final = (
    function_target.target(
        migrated_values,
        documents.yaml_texts([_SMALL, _SMALL, _VALUES, *_WRAPPED]),
        [json.dumps(_VALUES).encode(), json.dumps(_SMALL).encode()],
    ),
)
