# SPDX-License-Identifier: Apache-2.0
"""Writes into a tree where what is built from it is published, before the workflow builds it.

    python3 -m scripts.publication TAG --repository=https://HOST/OWNER/nvdra --registry=HOST/OWNER

The tree itself names no address, because a fork publishes under its own: wheels of it have no
links, and charts want the registry of their images. This is the only place that writes them:

    packages/*/pyproject.toml   the addresses that a package index shows
    packages/*/README.md        links to files of the repository
    charts/nvdra/**             home, sources, the maintainers' address; the registry of the
                                images; the README's links

It needs Python alone, and changes nothing if it cannot write everything.
"""

import argparse
import posixpath
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from scripts import site_pages

REPOSITORY = Path(__file__).resolve().parent.parent
MAINTAINERS = "The nvdra authors"
REGISTRY_LINE = '  imageRegistry: ""\n'
_WEB = re.compile(r"https://[\w.-]+(:\d+)?(/[\w.~-]+){2,}")
_REGISTRY = re.compile(r"[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)*")


class Place(NamedTuple):
    """Where a release is published.

    Attributes:
        repository: Address of the repository's web page, https://github.com/OWNER/nvdra.
        registry: What is before /nvdra/nvdra-gpu-plugin in the name of an image, ghcr.io/owner.
        tag: The tag of the release, which links to files name.
    """

    repository: str
    registry: str
    tag: str

    def file(self, path: str) -> str:
        """The page of a file of the repository."""
        return f"{self.repository}/blob/{self.tag}/{path}"

    def folder(self, path: str) -> str:
        """The page of a folder of the repository."""
        return f"{self.repository}/tree/{self.tag}/{path}"

    def raw(self, path: str) -> str:
        """A file itself, which a picture on another page needs."""
        return f"{self.repository}/raw/{self.tag}/{path}"


class PublicationError(Exception):
    """The tree cannot be published so; the text says why and what to do."""


def place(repository: str, registry: str, tag: str) -> Place:
    """Return where a release is published.

    Raises:
        PublicationError: An address has another form.
    """
    if _WEB.fullmatch(repository) is None:
        raise PublicationError(
            f"{repository!r} is no web page of a repository: write it as "
            "https://github.com/OWNER/nvdra"
        )
    if _REGISTRY.fullmatch(registry) is None:
        raise PublicationError(
            f"{registry!r} is no registry: write it as ghcr.io/owner, in small letters"
        )
    return Place(repository, registry, tag)


def write(published: Place, tree: Path) -> None:
    """Write where it is published into every package and every chart of a tree.

    Raises:
        PublicationError: A file is not as this script expects it; nothing is changed.
    """
    for path, text in list(_texts(published, tree)):
        path.write_text(text)


def _texts(published: Place, tree: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted((tree / "packages").glob("*/pyproject.toml")):
        yield path, _pyproject(path.read_text(), path.parent.name, published)
    charts = tree / "charts" / "nvdra"
    for path in sorted(charts.rglob("Chart.yaml")):
        folder = str(path.parent.relative_to(tree))
        yield path, _chart(path.read_text(), folder, published)
        values = path.with_name("values.yaml")
        yield values, _values(values.read_text(), values.relative_to(tree), published)
    for path in (*(tree / "packages").glob("*/README.md"), *charts.rglob("README.md")):
        source = str(path.relative_to(tree))
        yield path, absolute(path.read_text(), source, published, is_folder=_is_folder(tree))


def _pyproject(text: str, package: str, published: Place) -> str:
    if "[project.urls]" in text:
        raise PublicationError(_written(f"packages/{package}/pyproject.toml"))
    folder = f"packages/{package}"
    urls = {
        "Homepage": published.repository,
        "Documentation": published.folder("docs"),
        "Source": published.folder(folder),
        "Changelog": published.file(f"{folder}/CHANGELOG.md"),
        "Issues": f"{published.repository}/issues",
    }
    lines = "".join(f'{name} = "{address}"\n' for name, address in urls.items())
    return f"{text}\n[project.urls]\n{lines}"


def _chart(text: str, folder: str, published: Place) -> str:
    if re.search(r"^(home|sources):", text, re.MULTILINE):
        raise PublicationError(_written(f"{folder}/Chart.yaml"))
    maintainers = f"  - name: {MAINTAINERS}\n"
    if maintainers not in text:
        raise PublicationError(f"{folder}/Chart.yaml does not name {MAINTAINERS!r}: add them")
    addressed = text.replace(maintainers, f"{maintainers}    url: {published.repository}\n")
    lines = (f"home: {published.repository}", "sources:", f"  - {published.folder(folder)}")
    return addressed + "".join(f"{line}\n" for line in lines)


def _values(text: str, path: Path, published: Place) -> str:
    if text.count(REGISTRY_LINE) != 1:
        raise PublicationError(
            f"{path} has {REGISTRY_LINE.strip()!r} {text.count(REGISTRY_LINE)} times, not once: "
            "begin with a clean tree"
        )
    return text.replace(REGISTRY_LINE, f"  imageRegistry: {published.registry}\n")


def absolute(
    markdown: str, source: str, published: Place, *, is_folder: Callable[[str], bool]
) -> str:
    """Return a page whose links to files lead to the repository.

    Args:
        markdown: The text, with links that are relative to its file.
        source: The file's path in the repository.
        published: Where the repository is.
        is_folder: Whether a path in the repository is a folder; its address differs.
    """

    def link(image: str, text: str, path: str, anchor: str) -> str:
        resolved = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if image:
            address = published.raw(resolved)
        elif is_folder(resolved):
            address = published.folder(resolved)
        else:
            address = published.file(resolved)
        return f"{image}[{text}]({address}{anchor})"

    return site_pages.relinked(markdown, link)


def _is_folder(tree: Path) -> Callable[[str], bool]:
    return lambda path: (tree / path).is_dir()


def _written(path: str) -> str:
    return f"{path} says where it is published: begin with a clean tree (git checkout {path})"


def main() -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description="Write where a release is published into a tree.")
    parser.add_argument("tag", help="such as nvdra-gpu-plugin-v0.2.0: what links to files name")
    parser.add_argument("--repository", required=True, help="its web page, https://HOST/OWNER/NAME")
    parser.add_argument("--registry", required=True, help="of images and charts, HOST/OWNER")
    parser.add_argument("--tree", type=Path, default=REPOSITORY, help="default: this repository")
    arguments = parser.parse_args()
    try:
        where = place(arguments.repository, arguments.registry, arguments.tag)
        write(where, arguments.tree)
    except PublicationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
