# SPDX-License-Identifier: Apache-2.0
"""How images are built: the Dockerfiles, the build file, and what is pinned.

What is in an image is tested on the images themselves, in e2e/tests/kubelet/test_images.py.
"""

import re
import tomllib
from pathlib import Path

import pytest
from nvdra_lab.artifacts import image_context
from nvdra_lab.errors import LabError

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "packages"
DOCKERFILES = sorted(PACKAGES.glob("*/Dockerfile"))
WITHOUT_DEVICES = {"nvdra-cd-controller", "nvdra-webhook"}
LOCK = image_context.read_pins((ROOT / "requirements.images.lock").read_text())


def name(path: Path) -> str:
    return path.parent.name


@pytest.mark.parametrize("path", DOCKERFILES, ids=name)
def test_an_image_starts_from_nothing_and_gets_what_was_assembled(path: Path) -> None:
    first, last = path.read_text().split("\nFROM scratch\n")
    assert re.findall(r"^FROM (.*)$", first, re.MULTILINE) == [
        "${BASE} AS system",
        "system AS libraries",
        "libraries AS application",
    ]
    assert f"application.py {name(path)} " in first
    assert "RUN" not in last
    assert re.findall(r"^COPY (.*)$", last, re.MULTILINE) == [
        f"--from={stage} /image/{stage} /" for stage in ("system", "libraries", "application")
    ]


def test_images_share_their_first_two_layers() -> None:
    stages = {path.read_text().partition("ARG BASE")[2].partition(" AS application")[0]
              for path in DOCKERFILES}  # fmt: skip
    assert len(stages) == 1


@pytest.mark.parametrize("path", DOCKERFILES, ids=name)
def test_who_makes_no_devices_is_not_root(path: Path) -> None:
    assert ("\nUSER 65532:65532\n" in path.read_text()) == (name(path) in WITHOUT_DEVICES)


@pytest.mark.parametrize("path", DOCKERFILES, ids=name)
def test_an_image_is_labelled_with_what_its_package_says(path: Path) -> None:
    project = tomllib.loads((path.parent / "pyproject.toml").read_text())["project"]
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', path.read_text()))
    assert labels == {
        "title": project["name"],
        "description": project["description"],
        "licenses": project["license"],
        "version": "${VERSION}",
        "revision": "${REVISION}",
        "source": "${SOURCE}",
    }


def test_the_build_file_has_every_image() -> None:
    build_file = (ROOT / "docker-bake.hcl").read_text()
    (listed,) = re.findall(r"package = \[(.*)\]", build_file)
    assert sorted(re.findall(r'"([\w-]+)"', listed)) == [name(path) for path in DOCKERFILES]


def test_images_have_the_versions_that_the_tests_run_with() -> None:
    development = dict(
        re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    )
    tools = {each for each in LOCK if each not in development}
    assert {each: LOCK[each][0] for each in LOCK if each not in tools} == {
        each: version for each, version in development.items() if each in LOCK
    }
    assert "cyclonedx-python-lib" in tools  # the others are what it needs
    assert all(hashes for _, hashes in LOCK.values())


def test_every_dependency_of_an_image_is_locked() -> None:
    wanted = set()
    for path in DOCKERFILES:
        for package in image_context.closure(PACKAGES, name(path)):
            project = tomllib.loads((PACKAGES / package / "pyproject.toml").read_text())["project"]
            extras = project.get("optional-dependencies", {}).values()
            lines = [*project.get("dependencies", ()), *(each for one in extras for each in one)]
            wanted |= {re.split(r"[\[<>=~! ]", line)[0].lower() for line in lines}
    ours = {path.name for path in PACKAGES.iterdir()}
    assert wanted - ours <= set(LOCK)


def test_the_packages_of_an_image_are_those_that_its_own_needs() -> None:
    assert image_context.closure(PACKAGES, "nvdra-webhook") == {"nvdra-webhook", "nvdra-api"}
    plugin = {"nvdra-gpu-plugin", "nvdra-api", "nvdra-cdi"}
    assert image_context.closure(PACKAGES, "nvdra-gpu-plugin") == plugin


HASH, OTHER = "a" * 64, "b" * 64
PINS = f"grpcio==1.85.1 ; python_version >= '3.11' \\\n    --hash=sha256:{HASH}\n"


def test_pins_are_read_with_their_hashes() -> None:
    assert image_context.read_pins(PINS) == {"grpcio": ("1.85.1", frozenset({HASH}))}


def test_what_all_images_have_is_told_without_packages_of_ours() -> None:
    other, ours = PINS.replace("grpcio", "uvloop"), PINS.replace("grpcio", "nvdra-api")
    found = image_context.shared_requirements([ours + PINS + other, PINS + ours], ["nvdra-api"])
    assert found == PINS


@pytest.mark.parametrize(
    "served", [PINS.replace(HASH, OTHER), PINS.replace("1.85.1", "1.85.2")], ids=["file", "version"]
)
def test_a_wheel_that_is_not_locked_is_refused(served: str) -> None:
    locked = image_context.read_pins(PINS)
    image_context.check_hashes(PINS, locked, [])
    with pytest.raises(LabError, match=r"grpcio .* is not one that requirements\.images\.lock"):
        image_context.check_hashes(served, locked, [])
    image_context.check_hashes(served, locked, ["grpcio"])  # ours: built from the tree
