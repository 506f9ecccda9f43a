# SPDX-License-Identifier: Apache-2.0
"""Writes the bill of materials of an image, in the form of CycloneDX.

    bill_of_materials.py PACKAGE SITE_PACKAGES SYSTEM APPLICATION [HOOK]

It lists what is installed, each with its licence: the distributions in SITE_PACKAGES, the Debian
packages that files of SYSTEM and APPLICATION are of, Python if it is of none of them, and NVIDIA's
CDI hook with the modules of Go in it. It is written below APPLICATION/usr/share/doc. It needs
cyclonedx-python-lib, and runs where the image is assembled.
"""

import os
import platform
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from email.parser import Parser
from importlib import metadata
from pathlib import Path

import licenses
from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

TOOLKIT = "github.com/NVIDIA/nvidia-container-toolkit"


def main(package: str, site: Path, system: Path, application: Path, hook: Path | None) -> None:
    """Write the bill of materials of one image."""
    distributions = list(_distributions(site))
    (subject,) = (each for each in distributions if each.name == package)
    bom = Bom()
    bom.metadata.component = Component(
        name=package,
        version=subject.version,
        type=ComponentType.CONTAINER,
        bom_ref=f"image:{package}",
        licenses=subject.licenses,
    )
    release = _release(system)
    debian = (each for tree in (system, application) for each in _debian_packages(tree, release))
    for component in (*distributions, *debian):
        bom.components.add(component)
    if not any(each.name.startswith("python3") for each in bom.components):
        bom.components.add(_component("generic", "python", platform.python_version(), "PSF-2.0"))
    if hook is not None:
        # A build of the module itself says "(devel)", but the program knows its version.
        modules = {**licenses.go_modules(hook), TOOLKIT: f"v{_version_of(hook)}"}
        for module, version in modules.items():
            bom.components.add(_component("golang", module, version, licenses.of_module(module)))
    for component in bom.components:
        bom.register_dependency(bom.metadata.component, [component])
    # Neither the clock nor a random number: the same contents of one commit have the same bill.
    bom.metadata.timestamp = datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), UTC)
    # The hashes tell apart wheels of ours between two releases.
    contents = sorted(str(each.purl) for each in bom.components)
    hashes = Path("/requirements", f"{package}.txt").read_text()
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, " ".join((hashes, *contents)))
    outputter = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6)
    target = application / licenses.DOC / package / "sbom.cdx.json"
    target.parent.mkdir(parents=True)
    target.write_text(outputter.output_as_string(indent=2) + "\n")


def _distributions(site: Path) -> Iterator[Component]:
    for found in metadata.distributions(path=[str(site)]):
        name = licenses.normal(found.metadata["Name"])
        yield _component("pypi", name, found.version, licenses.of_distribution(found))


def _debian_packages(tree: Path, release: str) -> Iterator[Component]:
    for status in sorted((tree / "var/lib/dpkg/status.d").glob("*")):
        fields = Parser().parsestr(status.read_text())
        where = {"arch": fields["Architecture"], "distro": release}
        name = fields["Package"]
        text = tree / licenses.DOC / name / "copyright"
        licence = licenses.of_debian(text.read_text()) if text.exists() else licenses.UNKNOWN
        yield _component("deb", name, fields["Version"], licence, "debian", where)


def _component(
    kind: str,
    name: str,
    version: str,
    licence: str,
    namespace: str | None = None,
    qualifiers: dict[str, str] | None = None,
) -> Component:
    if kind == "golang":
        namespace, _, last = name.rpartition("/")
    else:
        last = name
    purl = PackageURL(kind, namespace, last, version, qualifiers)
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY if kind in ("pypi", "deb") else ComponentType.APPLICATION,
        purl=purl,
        bom_ref=str(purl),
        licenses=[LicenseFactory().make_from_string(licence)],
    )


def _release(system: Path) -> str:
    text = (system / "etc/os-release").read_text()
    found = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))
    return f"{found.get('ID', 'linux')}-{found.get('VERSION_ID', 'unknown')}"


def _version_of(hook: Path) -> str:
    said = subprocess.run([hook, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\d+\.\d+\.\d+", said)
    if found is None:
        raise SystemExit(f"error: {hook} --version says no version: {said!r}")
    return found[0]


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:5]), Path(sys.argv[5]) if sys.argv[5:] else None)
