# SPDX-License-Identifier: Apache-2.0
"""A hook of mkdocs: pages of the site that are outside of docs/, and links to files that are none.

The changelogs of packages are pages as well, with what is not released yet
(scripts/changelog_pages.py).

Pages are written for readers of the repository, so their links lead to files. On the site, a link
to a page leads to that page. A link to another file leads to the repository at `DOCS_REPOSITORY`,
the address of its web page, such as https://github.com/OWNER/nvdra; where that is not set, the
link's text stays without a link.
"""

import posixpath
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scripts import changelog_pages, release

ROOT = Path(__file__).parents[1]

OUTSIDE = {
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "bench/RESULTS.md": "measurements.md",
    "charts/README.md": "charts.md",
    "e2e/cluster/README.md": "lab.md",
    "e2e/sim/README.md": "simulator.md",
    "testing/README.md": "testing.md",
    **{
        f"packages/{path.parent.name}/README.md": f"components/{path.parent.name}.md"
        for path in sorted(ROOT.glob("packages/*/README.md"))
    },
    **{
        f"packages/{path.parent.name}/CHANGELOG.md": f"changelogs/{path.parent.name}.md"
        for path in sorted(ROOT.glob("packages/*/CHANGELOG.md"))
    },
}
"""Files of the repository and the pages that they are on the site.

The first page of the site is its own, docs/index.md; links to the README lead there.
"""

BLOCK = re.compile(r"(^[ \t]*```.*?^[ \t]*```[ \t]*$)", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"<code>[^<]{20,}</code>")
ISSUE = re.compile(r"\b(kubernetes/)(kubernetes)(#\d+)")
SEPARATOR = re.compile(r"(?<=\w)([/._=:,-])(?=\w)")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")


def on_config(config: Any) -> Any:
    """Say at the foot of each page of which version it is."""
    version = release.current_version(release.UMBRELLA, ROOT)
    config.copyright = f"nvdra {version} · {config.copyright}"
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are outside of docs/."""
    # Only the environment of the site has mkdocs, which runs the hook.
    from mkdocs.structure.files import File  # type: ignore[import-not-found]

    for source, page in OUTSIDE.items():
        if files.get_file_from_path(page) is None:
            files.append(File.generated(config, page, content=outside(source)))
    return files


def outside(source: str) -> str:
    """The text of a page that is outside of docs/."""
    path = ROOT / source
    if path.name == "CHANGELOG.md":
        return changelog_pages.text(path.parent.name, ROOT)
    return path.read_text()


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Make links to files links to pages."""
    here = page.file.src_uri
    sources = {target: source for source, target in OUTSIDE.items() if source != "README.md"}
    source = sources.get(here, f"docs/{here}")
    return rewritten(markdown, source, here, config.repo_url or "", lambda path: path.is_dir())


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Let long names in code break where a reader would break them, so that tables fit.

    Pages whose tables begin with names to look up get a class by which these stay whole.
    """
    is_index = page.file.src_uri == "charts.md" or page.file.src_uri.startswith("configuration/")
    text = breakable(html)
    return f'<div class="names">{text}</div>' if is_index else text


def breakable(html: str) -> str:
    """Return a page with long code outside of blocks, and issues, broken after separators."""
    html = ISSUE.sub(r"\1<wbr>\2<wbr>\3", html)
    return CODE.sub(lambda found: SEPARATOR.sub(r"\1<wbr>", found[0]), html)


def rewritten(
    markdown: str, source: str, page: str, repository: str, is_folder: Callable[[Path], bool]
) -> str:
    """Return a page whose links lead to pages of the site.

    Args:
        markdown: The text, with links that are relative to its file.
        source: The file's path in the repository.
        page: The page's path on the site.
        repository: Address of the repository's web page; empty if it has none.
        is_folder: Whether a path is a folder; its address differs from that of a file.
    """

    def replace(image: str, text: str, path: str, anchor: str) -> str:
        resolved = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        link = _link(resolved, page, OUTSIDE)
        if link is None and not repository:
            return text
        if link is None:
            kind = "tree" if is_folder(ROOT / resolved) else "blob"
            link = f"{repository.rstrip('/')}/{kind}/main/{resolved}"
        return f"{image}[{text}]({link}{anchor})"

    return relinked(markdown, replace)


def relinked(markdown: str, replace: Callable[[str, str, str, str], str]) -> str:
    """Return a text whose links to files are replaced; those in blocks of code stay.

    Args:
        markdown: The text.
        replace: What a link becomes: of `!` if it is an image, its text, the file's path as it is
            written, and its anchor with `#`, or nothing.
    """

    def replaced(found: re.Match[str]) -> str:
        image, text, target = found.groups()
        path, separator, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", target):
            return found[0]
        return replace(image, text, path, separator + anchor)

    parts = BLOCK.split(markdown)
    return "".join(part if at % 2 else LINK.sub(replaced, part) for at, part in enumerate(parts))


def _link(resolved: str, page: str, outside: Mapping[str, str]) -> str | None:
    """Return the link from a page to a file of the repository; None if the site lacks it."""
    target = outside.get(resolved)
    if target is None and resolved.startswith("docs/") and posixpath.splitext(resolved)[1]:
        target = resolved.removeprefix("docs/")
    if target is None and resolved.startswith("docs/"):
        target = f"{resolved.removeprefix('docs/')}/README.md"
    if target is None:
        return None
    return posixpath.relpath(target, posixpath.dirname(page) or ".")
