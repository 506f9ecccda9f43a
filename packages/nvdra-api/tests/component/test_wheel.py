# SPDX-License-Identifier: Apache-2.0
"""What a pip user gets: the wheel, installed without extras and used outside the repository."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

PACKAGE = Path(__file__).parents[2]
README = (PACKAGE / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.DOTALL)

IMPORT_ALL = """
import json, pkgutil, sys
import nvdra_api
for module in pkgutil.walk_packages(nvdra_api.__path__, "nvdra_api."):
    __import__(module.name)
third_party = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
print(json.dumps(sorted(third_party)))
print(json.dumps(sorted(name for name in sys.modules if name.startswith("nvdra_api."))))
"""
PYDANTIC = {
    "annotated_types",
    "pydantic",
    "pydantic_core",
    "typing_extensions",
    "typing_inspection",
}


def run(*command: str | Path, cwd: Path, given: str = "") -> str:
    done = subprocess.run(
        command, cwd=cwd, input=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    run("hatch", "build", "-t", "wheel", directory, cwd=PACKAGE)
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path) -> Path:
    """The interpreter of an environment in which only the wheel and pydantic are installed."""
    directory = wheel.parent
    run("uv", "venv", "--python", sys.executable, directory / "venv", cwd=directory)
    interpreter = directory / "venv/bin/python"
    run("uv", "pip", "install", "--python", interpreter, wheel, cwd=directory)
    return interpreter


def test_the_wheel_has_both_import_packages_and_their_types(wheel: Path) -> None:
    names = set(ZipFile(wheel).namelist())
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {
        "nvdra_api",
        "nvdra_runtime",
    }
    assert {"nvdra_api/py.typed", "nvdra_runtime/py.typed"} <= names
    sources = {
        str(path.relative_to(PACKAGE / "src"))
        for path in (PACKAGE / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if ".dist-info/" not in name} == sources


def test_every_api_module_loads_the_standard_library_and_pydantic_only(python: Path) -> None:
    loaded, modules = run(python, "-I", "-c", IMPORT_ALL, cwd=python.parent).splitlines()
    others = {name for name in json.loads(loaded) if not name.startswith("_")}
    of_debian = {"sitecustomize"}  # its Python imports this by itself
    assert others - {"__main__"} - of_debian == PYDANTIC | {"nvdra_api"}
    assert "nvdra_api.v1beta1.compute_domain_clique" in json.loads(modules)


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("telemetry.logs", "telemetry"),
        ("http", "http"),
        ("kube.client", "kube"),
        ("resourceslices.publisher", "kube"),
        ("node.nvml", "node"),
        ("claims.records", "plugin"),
        ("kubeletplugin.server", "plugin"),
    ],
)
def test_an_import_without_its_extra_names_the_extra(python: Path, module: str, extra: str) -> None:
    done = subprocess.run(
        [python, "-I", "-c", f"import nvdra_runtime.{module}"],
        cwd=python.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("nvdra_runtime.extras.MissingExtraError: nvdra_runtime.")
    assert last.endswith(f"pip install 'nvdra-api[{extra}]'")


def test_packages_without_an_extra_need_pydantic_only(python: Path) -> None:
    modules = ("process.app", "settings.loader", "node.record_store", "computedomain.daemon_pods")
    program = "; ".join(f"import nvdra_runtime.{module}" for module in modules)
    run(python, "-I", "-c", program, cwd=python.parent)


def test_the_wheel_brings_the_command_kill_of_the_images(python: Path) -> None:
    waiting = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    with subprocess.Popen(waiting, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        run(python.with_name("nvdra-kill"), "-s", "SIGUSR2", str(process.pid), cwd=python.parent)
        assert process.wait(timeout=10) == -signal.SIGUSR2


@pytest.mark.parametrize(("code", "output"), EXAMPLES)
def test_an_example_of_the_readme_runs(python: Path, code: str, output: str) -> None:
    slices = (Path(__file__).parents[1] / "unit" / "golden" / "resourceslices.json").read_text()
    assert run(python, "-I", "-c", code, cwd=python.parent, given=slices) == output
