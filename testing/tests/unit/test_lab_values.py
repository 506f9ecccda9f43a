# SPDX-License-Identifier: Apache-2.0
"""The values that a reader of the documentation installs with in a lab."""

from pathlib import Path

import yaml
from nvdra_testing.cluster.installation import LAB_SETTINGS

VALUES = Path(__file__).parents[3] / "e2e/cluster/chart-values.yaml"


def test_they_are_those_of_the_end_to_end_tests() -> None:
    assert yaml.safe_load(VALUES.read_text()) == {"global": {**LAB_SETTINGS, "devRoot": "/dev"}}
