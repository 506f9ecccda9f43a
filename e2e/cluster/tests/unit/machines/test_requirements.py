# SPDX-License-Identifier: Apache-2.0
import dataclasses
from pathlib import Path

import pytest
from nvdra_lab import environment, layout
from nvdra_lab.artifacts import project_images
from nvdra_lab.errors import LabError
from nvdra_lab.machines import requirements


def somebody(tmp_path: Path, *, is_root: bool) -> environment.Environment:
    return dataclasses.replace(
        environment.read(),
        is_root=is_root,
        cache=layout.CacheDir(tmp_path / "cache"),
        state=tmp_path / "state",
    )


def test_without_root_a_local_lab_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="run it as root"):
        requirements.check(somebody(tmp_path, is_root=False))


def test_a_checkout_that_nodes_would_hide_is_refused(tmp_path: Path) -> None:
    hidden = dataclasses.replace(
        somebody(tmp_path, is_root=True), source=Path("/var/lib/ci/e2e/cluster")
    )
    with pytest.raises(LabError, match="lies below /var/lib"):
        requirements.check(hidden)


def test_a_kernel_without_fuse_is_refused_for_passthrough(tmp_path: Path) -> None:
    requirements.check_fuse(Path("/dev/null"))
    with pytest.raises(LabError, match=r"--passthrough needs .*/fuse"):
        requirements.check_fuse(tmp_path / "fuse")


def test_the_version_of_an_image_is_that_of_its_package() -> None:
    assert project_images.version_in('"""x"""\n\n__version__ = "1.2.3"\n') == "1.2.3"
    assert project_images.version_in('__version__ = "1.2.3.dev0"\n') == "1.2.3-dev"
