# SPDX-License-Identifier: Apache-2.0
"""Each thing in an image has a licence that the bill of materials names, and its text is there."""

import json
import re
from typing import Any

import pytest
from nvdra_lab import environment
from nvdra_lab.artifacts import images
from nvdra_testing.image_archive import Image, read

IMAGES = (
    "nvdra-cd-controller",
    "nvdra-cd-plugin",
    "nvdra-gpu-plugin",
    "nvdra-imex-daemon",
    "nvdra-webhook",
)
TEXT = re.compile(r"licen[cs]e|copying|notice|copyright", re.IGNORECASE)
UNREADABLE = re.compile(r"^pkg:deb/debian/(base-files|libc|libgcc|libstdc|gcc|(lib)?python3)")
"""Debian packages that say in prose under which licences they are."""


@pytest.fixture(scope="module", params=IMAGES)
def package(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def image(package: str) -> Image:
    return read(images.archive(environment.read(), package), "sbom.cdx.json", "copyright")


@pytest.fixture(scope="module")
def components(image: Image, package: str) -> list[dict[str, Any]]:
    bill = json.loads(image.texts[f"usr/share/doc/{package}/sbom.cdx.json"])
    found: list[dict[str, Any]] = bill["components"]
    assert found
    return found


def named(component: dict[str, Any]) -> str:
    """The licences of a component in one text."""
    said = (each.get("license", each) for each in component.get("licenses", ()))
    return " ".join(each.get("id") or each.get("name") or each["expression"] for each in said)


def test_every_component_has_a_licence(components: list[dict[str, Any]]) -> None:
    assert [each["purl"] for each in components if not named(each)] == []
    unknown = [each["purl"] for each in components if named(each) == "NOASSERTION"]
    assert [purl for purl in unknown if not UNREADABLE.match(purl)] == []


def places(component: dict[str, Any], image: Image) -> list[str]:
    """Where the text of a component's licence may be in the image."""
    kind = component["purl"].removeprefix("pkg:").partition("/")[0]
    name = component["name"]
    doc = "usr/share/doc"
    if kind == "deb":
        target = image.links.get(f"{doc}/{name}", name)
        return [f"{doc}/{target}/"]
    if kind == "golang":
        return [f"{doc}/nvidia-cdi-hook/{name}/"]
    if kind == "generic":
        return [path for path in image.sizes if re.search(r"lib/python3\.\d+/LICENSE\.txt$", path)]
    version = component["version"]
    escaped = re.sub(r"-", "[-_.]", re.escape(name).replace(r"\-", "-"))
    pattern = rf"(opt/nvdra/lib/.*/{escaped}-{re.escape(version)}\.dist-info/)"
    infos = {found[1] for path in image.sizes if (found := re.match(pattern, path, re.I))}
    return [*infos, f"{doc}/{name}/"]


def test_the_text_of_each_licence_is_there(image: Image, components: list[dict[str, Any]]) -> None:
    missing = []
    for component in components:
        within = tuple(places(component, image))
        texts = [path for path in image.sizes if path.startswith(within)] if within else []
        if not any(TEXT.search(path.rpartition(".dist-info/")[2]) for path in texts):
            missing.append(component["purl"])
    assert missing == []


def test_what_a_debian_package_refers_to_is_there(image: Image) -> None:
    paths = {*image.sizes, *image.links}
    wanted = {
        found
        for path, text in image.texts.items()
        if path.endswith("/copyright")
        for found in re.findall(
            r"usr/share/common-licenses/(?:L?GPL|Apache|Artistic)[\w.-]*\w", text
        )
    }
    assert wanted
    assert [each for each in wanted if each not in paths] == []


def test_the_hook_and_its_modules_are_listed(
    components: list[dict[str, Any]], package: str
) -> None:
    modules = {each["name"] for each in components if each["purl"].startswith("pkg:golang/")}
    if package in ("nvdra-gpu-plugin", "nvdra-cd-plugin"):
        assert {"github.com/NVIDIA/nvidia-container-toolkit", "stdlib"} < modules
        assert len(modules) > 20
    else:
        assert modules == set()
