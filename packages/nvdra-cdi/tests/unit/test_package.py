# SPDX-License-Identifier: Apache-2.0
"""What `import nvdra_cdi` offers."""

import subprocess
import sys
from pathlib import Path

import nvdra_cdi
import pytest
from nvdra_cdi import errors, model
from nvdra_cdi.__about__ import __version__


def test_the_package_knows_its_version() -> None:
    assert nvdra_cdi.__version__ == __version__


def test_every_public_name_is_there_and_sorted() -> None:
    assert [name for name in nvdra_cdi.__all__ if not hasattr(nvdra_cdi, name)] == []
    assert sorted(set(nvdra_cdi.__all__)) == sorted(nvdra_cdi.__all__)


@pytest.mark.parametrize("module", [model, errors])
def test_every_class_of_documents_and_errors_is_public(module: object) -> None:
    classes = {
        name
        for name, value in vars(module).items()
        if isinstance(value, type)
        and value.__module__ == getattr(module, "__name__", "")
        and not name.startswith("_")
    }
    assert classes <= set(nvdra_cdi.__all__)


def test_one_import_is_enough_to_write_resolve_and_inject(tmp_path: Path) -> None:
    device = nvdra_cdi.Device("a", nvdra_cdi.ContainerEdits(env=("A=b",)))
    nvdra_cdi.files.write(nvdra_cdi.Spec("vendor.com/class", (device,)), tmp_path / "x.yaml")
    cache = nvdra_cdi.Cache([tmp_path])
    injected = nvdra_cdi.oci.inject({}, cache, ["vendor.com/class=a"])
    assert injected == {"process": {"env": ["A=b"]}}


def test_the_import_does_not_need_what_only_generation_needs() -> None:
    program = (
        "import sys, nvdra_cdi; print([m for m in ('pydantic', 'pynvml') if m in sys.modules])"
    )
    done = subprocess.run(
        (sys.executable, "-c", program), capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
