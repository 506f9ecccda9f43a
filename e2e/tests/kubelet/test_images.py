# SPDX-License-Identifier: Apache-2.0
"""What is in the images that the lab has built, and what is not. No cluster is needed.

The other tests here run these images: what is missing in one is noticed there.
"""

import json
import re
from email.parser import Parser
from pathlib import Path

import pytest
from nvdra_lab import environment
from nvdra_lab.artifacts import image_context, images, project_images
from nvdra_lab.artifacts.buildah import Buildah
from nvdra_lab.layout import CacheDir
from nvdra_testing.image_archive import Image, read

PROGRAMS = {
    "nvdra-gpu-plugin": {"gpu-kubelet-plugin", "nvidia-cdi-hook", "modprobe", "kmod"},
    "nvdra-cd-plugin": {"compute-domain-kubelet-plugin", "nvidia-cdi-hook"},
    "nvdra-cd-controller": {"compute-domain-controller"},
    "nvdra-imex-daemon": {"compute-domain-daemon"},
    "nvdra-webhook": {"webhook"},
}
"""Each image, and the programs that it has beside its own, Python, `cat`, `chroot` and `kill`."""
WITHOUT_DEVICES = {"nvdra-cd-controller", "nvdra-webhook"}
APPLICATION_MIB = 100
"""Of what is not Python itself and its libraries."""
WHOLE_MIB = 130
LABEL = "org.opencontainers.image."
ARCHITECTURES = {"amd64", "arm64"}


@pytest.fixture(scope="module", params=sorted(PROGRAMS))
def package(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def image(package: str) -> Image:
    file = images.archive(environment.read(), package)
    return read(file, "sbom.cdx.json", "METADATA", "etc/passwd", f"bin/{package}")


def test_every_image_is_looked_at() -> None:
    assert {each.name for each in project_images.all_projects(environment.read())} == set(PROGRAMS)


def test_there_are_the_programs_that_it_needs_and_no_others(image: Image, package: str) -> None:
    """So there is no shell, no package manager, no compiler and nothing to download with."""
    folders = ("usr/bin", "usr/sbin", "usr/local/bin", "usr/local/sbin", "bin", "sbin")
    found = {name for name in image.names_in(*folders) if not name.startswith("python3")}
    assert found == {package, *PROGRAMS[package], "cat", "chroot", "kill"}
    ours = {name for name in image.names_in("opt/nvdra/bin") if not name.startswith("python")}
    assert ours == {package, "nvdra-kill", "nvdra-check-installation"}


def test_its_python_cannot_install_anything(image: Image) -> None:
    tools = re.compile(r"(^|/)(pip|setuptools|ensurepip|distutils|wheel|easy_install)(/|-|\.py$)")
    assert [path for path in image.sizes if tools.search(path)] == []


def test_no_program_gives_its_caller_other_rights(image: Image) -> None:
    assert [path for path, mode in image.modes.items() if mode & 0o6000] == []


def test_who_runs_what(image: Image, package: str) -> None:
    assert image.config["Entrypoint"] == [package]
    assert image.config.get("User", "") == ("65532:65532" if package in WITHOUT_DEVICES else "")
    assert "65532" in image.texts["etc/passwd"]
    assert image.links[f"usr/bin/{package}"] == f"/opt/nvdra/bin/{package}"
    assert image.links["usr/bin/kill"] == "/opt/nvdra/bin/nvdra-kill"


def test_its_labels_say_what_it_is_and_of_which_commit(image: Image, package: str) -> None:
    here = environment.read()
    (project,) = (each for each in project_images.all_projects(here) if each.name == package)
    labels = image.config["Labels"]
    assert labels[f"{LABEL}title"] == package
    assert labels[f"{LABEL}version"] == project.version
    assert labels[f"{LABEL}licenses"] == "Apache-2.0"
    assert labels[f"{LABEL}source"]
    assert re.fullmatch(r"[0-9a-f]{40}(-modified)?", labels[f"{LABEL}revision"])
    assert image.architecture in ARCHITECTURES


def test_an_image_that_is_built_again_has_the_labels_of_now(tmp_path: Path) -> None:
    buildah = Buildah(CacheDir(tmp_path), environment.read().variables)
    (tmp_path / "Dockerfile").write_text(
        "FROM scratch\nCOPY Dockerfile /\nARG REVISION\n"
        'LABEL org.opencontainers.image.revision="${REVISION}"\n'
    )
    for revision in ("former", "present"):
        arguments = {"VERSION": "1", "REVISION": revision, "SOURCE": "here"}
        labels = project_images.labels_of(arguments)
        file = tmp_path / "Dockerfile"
        buildah.build("localhost/labelled:1", file, tmp_path, arguments, labels=labels)
    buildah.save("localhost/labelled:1", tmp_path / "labelled.tar")
    found = read(tmp_path / "labelled.tar").config["Labels"]
    assert found[f"{LABEL}revision"] == "present"


def test_the_bill_of_materials_lists_what_is_installed(image: Image, package: str) -> None:
    bill = json.loads(image.texts[f"usr/share/doc/{package}/sbom.cdx.json"])
    assert bill["bomFormat"] == "CycloneDX"
    listed: dict[str, set[tuple[str, str]]] = {}
    for each in bill["components"]:
        kind = each["purl"].removeprefix("pkg:").partition("/")[0]
        listed.setdefault(kind, set()).add((each["name"], each["version"]))
    metadata = [Parser().parsestr(text) for path, text in image.texts.items() if is_metadata(path)]
    installed = {(each["Name"].lower().replace("_", "-"), each["Version"]) for each in metadata}
    assert listed["pypi"] == {(name.replace(".", "-"), version) for name, version in installed}
    assert {name for name, _ in listed["deb"]} == image.names_in("var/lib/dpkg/status.d")
    assert ("golang" in listed) == ("nvidia-cdi-hook" in PROGRAMS[package])


def test_what_is_installed_is_what_is_locked_by_hash(image: Image) -> None:
    repository = environment.read().repository
    lock = image_context.read_pins((repository / "requirements.images.lock").read_text())
    metadata = [Parser().parsestr(text) for path, text in image.texts.items() if is_metadata(path)]
    others = {
        re.sub(r"[-_.]+", "-", each["Name"]).lower(): each["Version"]
        for each in metadata
        if not each["Name"].startswith("nvdra")
    }
    assert others
    assert others == {name: lock[name][0] for name in others}


def test_all_python_is_compiled_so_that_no_container_does_it_at_its_start(image: Image) -> None:
    sources = [path for path in image.sizes if path.endswith(".py")]
    assert len(sources) > 1000
    compiled = {
        re.sub(r"__pycache__/(.*)\.cpython-\d+\.pyc$", r"\1.py", path)
        for path in image.sizes
        if path.endswith(".pyc")
    }
    assert [path for path in sources if path not in compiled] == []


def test_whoever_pulls_all_images_pulls_python_and_its_packages_once() -> None:
    here = environment.read()
    found = [read(images.archive(here, package)).layers for package in PROGRAMS]
    assert {len(layers) for layers in found} == {3}
    assert len({layers[:2] for layers in found}) == 1
    assert len({layers[2] for layers in found}) == len(PROGRAMS)


def test_it_is_small(image: Image) -> None:
    assert image.mib("opt/") < APPLICATION_MIB
    assert image.mib() < WHOLE_MIB


def is_metadata(path: str) -> bool:
    return path.endswith(".dist-info/METADATA")
