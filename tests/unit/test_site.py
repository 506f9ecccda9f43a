# SPDX-License-Identifier: Apache-2.0
"""The documentation site, as far as it can be checked without building it (`make docs`)."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts import document_configuration, site_pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = document_configuration.pages()
TASKS = [DOCS / "first-claim.md", *sorted((DOCS / "tasks").glob("*.md"))]
FIRST_PAGES = ("requirements.md", "platforms.md", "gitops.md", "versions.md", "faq.md")
"""What a reader asks for before anything is installed."""
LINKED = sorted({*DOCS.rglob("*.md"), *(ROOT / source for source in site_pages.OUTSIDE)})


def is_folder(path: Path) -> bool:
    return path.suffix == ""


def rewritten(text: str, source: str, page: str, repository: str = "") -> str:
    return site_pages.rewritten(text, source, page, repository, is_folder)


@pytest.mark.parametrize("page", GENERATED, ids=lambda page: page.name)
def test_a_generated_page_is_what_the_code_says(page: Path) -> None:
    assert page.read_text() == GENERATED[page], "run `python -m scripts.document_configuration`"


def test_every_program_with_flags_is_on_the_page_of_flags() -> None:
    with_flags = {path.parents[2].name for path in ROOT.glob("packages/*/src/*/settings.py")}
    assert with_flags == set(document_configuration.COMPONENTS)


def test_every_quickstart_is_shown_on_a_page_of_tasks_or_named_there() -> None:
    text = "".join(page.read_text() for page in TASKS)
    shown = set(re.findall(r'--8<-- "e2e/quickstarts/([^"]+)"', text))
    files = {path.name for path in ROOT.glob("e2e/quickstarts/*.yaml")}
    assert shown <= files
    assert files - shown == {"6-a-gpu-that-no-node-has.yaml"}, "manifest 6 is told in words"
    workloads = {path.name for path in ROOT.glob("e2e/workloads/*.yaml")}
    assert set(re.findall(r'--8<-- "e2e/workloads/([^"]+)"', text)) == workloads


@pytest.mark.parametrize(
    "manifest", sorted(ROOT.glob("e2e/[qw]*/*.yaml")), ids=lambda path: str(path.name)
)
def test_a_manifest_runs_on_nodes_with_the_usual_taint(manifest: Path) -> None:
    pods = list(_pod_specs(list(yaml.safe_load_all(manifest.read_text()))))
    assert pods
    usual = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert [spec for spec in pods if usual not in spec.get("tolerations", [])] == []


def test_a_reader_of_the_readme_finds_every_page_of_the_users() -> None:
    """By its table, or from a page of docs/ that is in it."""
    readme = _linked(ROOT / "README.md")
    pages = set(DOCS.glob("*.md"))
    reached = readme.union(*(_linked(page) for page in readme & pages))
    assert sorted(pages - reached) == []
    assert {DOCS / name for name in FIRST_PAGES} <= readme


def test_every_page_of_the_users_is_linked_from_another_one() -> None:
    pages = set(DOCS.glob("*.md"))
    links = set().union(*(_linked(page) - {page} for page in DOCS.rglob("*.md")))
    assert sorted(pages - links - {DOCS / "index.md"}) == []


def test_every_page_has_its_place() -> None:
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert sorted(navigation()) == sorted(pages | set(site_pages.OUTSIDE.values()))


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_its_links_lead_somewhere(page: Path) -> None:
    text = site_pages.BLOCK.sub("", page.read_text())
    targets = [found[3].partition("#")[0] for found in site_pages.LINK.finditer(text)]
    files = [target for target in targets if target and not re.match(r"[a-z]+:", target)]
    assert [each for each in files if not (page.parent / each).exists()] == []


def test_a_link_to_a_file_that_is_a_page_leads_to_the_page() -> None:
    assert rewritten("[how](../charts/README.md#values)", "docs/install.md", "install.md") == (
        "[how](charts.md#values)"
    )
    text = "![a](../../docs/images/a.png) [r](../../docs/reasons.md) [d](../../docs/decisions)"
    assert rewritten(text, "packages/x/README.md", "components/x.md") == (
        "![a](../images/a.png) [r](../reasons.md) [d](../decisions/README.md)"
    )


def test_a_link_to_another_file_leads_to_the_repository_if_it_has_an_address() -> None:
    text = "[`a`](../scripts/check.py), [tests](../e2e/tests)"
    found = rewritten(text, "docs/a.md", "a.md", "https://example.com/nvdra/")
    assert found == (
        "[`a`](https://example.com/nvdra/blob/main/scripts/check.py), "
        "[tests](https://example.com/nvdra/tree/main/e2e/tests)"
    )
    assert rewritten(text, "docs/a.md", "a.md") == "`a`, tests"


def test_code_anchors_and_addresses_stay() -> None:
    text = "[a](#a) [b](https://example.com)\n\n```sh\n[c](../d.md)\n```\n"
    assert rewritten(text, "docs/a.md", "a.md", "https://example.com") == text


def test_long_code_breaks_after_separators_and_short_code_and_blocks_do_not() -> None:
    assert site_pages.breakable("<td><code>gpu.nvidia.com/xid=48:NoSchedule</code></td>") == (
        "<td><code>gpu.<wbr>nvidia.<wbr>com/<wbr>xid=<wbr>48:<wbr>NoSchedule</code></td>"
    )
    assert site_pages.breakable("(kubernetes/kubernetes#141471)") == (
        "(kubernetes/<wbr>kubernetes<wbr>#141471)"
    )
    kept = "<code>--node-name</code><pre><code><span>a.very.long.line.of.code</span></code></pre>"
    assert site_pages.breakable(kept) == kept


def _linked(page: Path) -> set[Path]:
    """The files that a page links to."""
    text = site_pages.BLOCK.sub("", page.read_text())
    found = (link[3].partition("#")[0] for link in site_pages.LINK.finditer(text))
    return {(page.parent / target).resolve() for target in found if target}


def _pod_specs(node: object) -> Iterator[dict[str, Any]]:
    """Each specification of a pod, also of one that a Deployment or a Job makes."""
    if isinstance(node, dict):
        if "containers" in node:
            yield node
        for value in node.values():
            yield from _pod_specs(value)
    elif isinstance(node, list):
        for item in node:
            yield from _pod_specs(item)


def navigation() -> Iterator[str]:
    """The pages in the navigation of mkdocs.yml."""
    yield from _pages(yaml.load((ROOT / "mkdocs.yml").read_text(), _Configuration)["nav"])


def _pages(node: object) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    elif isinstance(node, list):
        for each in node:
            yield from _pages(each)
    elif isinstance(node, dict):
        yield from _pages(list(node.values()))


class _Configuration(yaml.SafeLoader):
    """Reads mkdocs.yml without its tags, which call functions of mkdocs' extensions."""


_Configuration.add_multi_constructor("", lambda _loader, _tag, _node: None)
