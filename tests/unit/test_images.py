"""What every image has beside its program."""

import tomllib
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[2] / "packages"
KILL = "{ test -e /usr/bin/kill || ln -s /opt/nvdra/bin/nvdra-kill /usr/bin/kill; }"


@pytest.mark.parametrize("path", sorted(PACKAGES.glob("*/Dockerfile")), ids=lambda p: p.parent.name)
def test_an_image_can_be_asked_for_its_stacks_by_the_reference_drivers_command(path: Path) -> None:
    """`kubectl exec POD -- kill -s SIGUSR2 1`: the base image has no such program."""
    assert KILL in path.read_text()
    project = tomllib.loads((PACKAGES / "nvdra-api/pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"nvdra-kill": "nvdra_runtime.process.kill_command:main"}
