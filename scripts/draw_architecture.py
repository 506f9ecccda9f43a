# SPDX-License-Identifier: Apache-2.0
"""Draws docs/images/architecture.svg: the components, who talks to whom, and by what.

    python -m scripts.draw_architecture

The tables below are the picture; its alternative text on the pages is made from them as well.
Text stays text, and the picture has its own background, so that it can be read on any page, in
the light and in the dark.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs/images/architecture.svg"
PAGES = ("docs/architecture.md", "docs/index.md")
"""Pages that show it."""

WIDTH, HEIGHT = 1130, 770
TITLE, SMALL = 15, 12.5
"""Sizes of letters."""

LIGHT = {
    "page": "#ffffff",
    "text": "#1c2b33",
    "zone": "#f1f4f5",
    "ours": "#d5ebe8",
    "others": "#ffffff",
    "edge": "#5b7078",
}
DARK = {
    "page": "#1b2226",
    "text": "#e7eef0",
    "zone": "#252e33",
    "ours": "#1f4f4a",
    "others": "#2e393f",
    "edge": "#9db2ba",
}
"""Colours by what they are of; `edge` is that of arrows and frames."""


class Box(NamedTuple):
    """Something that runs, or a file: its first line is its name."""

    name: str
    x: int
    y: int
    width: int
    height: int
    lines: tuple[str, ...]
    is_ours: bool = False


class Arrow(NamedTuple):
    """Who begins it, with whom, and by what.

    Attributes:
        path: The corners of its line; the head is at the last one.
        label: Where its words begin, and the words, a line each; without them it needs none.
        is_mutual: It has a head at both ends.
        words: What the alternative text says, if not the label.
    """

    source: str
    target: str
    path: tuple[tuple[int, int], ...]
    label: tuple[int, int, tuple[str, ...]] | None = None
    is_mutual: bool = False
    words: str = ""

    @property
    def told(self) -> str:
        """What goes along it."""
        return self.words or " ".join(self.label[2] if self.label else ())


ZONES = (
    (200, 8, 920, 238, "Control plane, and pods on any node"),
    (10, 296, 1110, 388, "Each node with GPUs"),
)
"""Frames: place, size and name."""

BOXES = (
    Box("kubectl, helm", 14, 40, 160, 64, ("claims, domains,", "values of the chart")),
    Box("nvdra-migrate", 14, 150, 160, 64, ("makes them from", "the reference's values"), True),
    Box("API server", 220, 40, 720, 54, ("ResourceSlices, ResourceClaims, ComputeDomains",)),
    Box("scheduler", 1000, 40, 110, 54, ("chooses devices",)),
    Box("nvdra-webhook", 260, 158, 170, 64, ("checks configs of", "claims and templates"), True),
    Box("nvdra-cd-controller", 560, 158, 215, 64,
        ("ComputeDomains, and", "what belongs to them"), True),
    Box("kubelet", 40, 356, 210, 64, ("starts and ends pods,", "asks for their devices")),
    Box("nvdra-gpu-plugin", 330, 356, 230, 64,
        ("offers and prepares GPUs", "and MIG devices"), True),
    Box("nvdra-cd-plugin", 630, 356, 200, 64, ("offers and prepares", "channels of domains"), True),
    Box("nvdra-imex-daemon", 900, 356, 190, 64,
        ("a pod of a domain", "on each of its nodes"), True),
    Box("containerd or CRI-O", 40, 510, 210, 54, ("puts devices into containers",)),
    Box("CDI specs", 330, 510, 230, 54, ("in /var/run/cdi",)),
    Box("NVML", 630, 510, 200, 54, ("the driver, the GPUs",)),
    Box("nvidia-imex", 900, 510, 190, 54, ("one for the node",)),
    Box("container", 40, 614, 210, 54, ("device nodes, libraries",)),
    Box("MPS control daemon", 330, 614, 230, 54, ("a pod for each claim with MPS",)),
    Box("nvidia-imex of other nodes", 855, 614, 255, 54, ("of the same domain",)),
    Box("nvdra-api", 14, 702, 560, 54,
        ("in every component: API types, kubelet plugin, API client, telemetry",), True),
    Box("nvdra-cdi", 594, 702, 526, 54,
        ("in both plugins: makes and reads CDI specs. Also a command",), True),
)  # fmt: skip

ARROWS = (
    Arrow("kubectl, helm", "API server", ((174, 67), (220, 67)), words="claims, domains"),
    Arrow("nvdra-migrate", "kubectl, helm", ((94, 150), (94, 104)), words="a values file"),
    Arrow("scheduler", "API server", ((1000, 67), (940, 67)), is_mutual=True,
          words="reads slices and claims, writes allocations"),
    Arrow("API server", "nvdra-webhook", ((345, 94), (345, 158)),
          (352, 130, ("HTTPS: reviews",))),
    Arrow("nvdra-cd-controller", "API server", ((620, 158), (620, 94)),
          (627, 122, ("domains, DaemonSets,", "claim templates")), is_mutual=True),
    Arrow("kubelet", "API server", ((235, 356), (235, 94)),
          (242, 266, ("pods, claims",)), is_mutual=True),
    Arrow("nvdra-gpu-plugin", "API server", ((480, 356), (480, 94)),
          (487, 266, ("slices, claims, Events,", "Deployments of MPS")), is_mutual=True),
    Arrow("nvdra-cd-plugin", "API server", ((800, 356), (800, 94)),
          (807, 266, ("slices, claims,", "a Node's label")), is_mutual=True),
    Arrow("nvdra-imex-daemon", "API server", ((925, 356), (925, 94)),
          (932, 266, ("its node's entry", "in the domain's clique")), is_mutual=True),
    Arrow("kubelet", "nvdra-gpu-plugin", ((190, 356), (190, 336), (360, 336), (360, 356)),
          (242, 330, ("gRPC: prepare",)), words="gRPC: prepare, unprepare"),
    Arrow("kubelet", "nvdra-cd-plugin", ((360, 336), (660, 336), (660, 356)),
          words="gRPC: prepare, unprepare"),
    Arrow("kubelet", "containerd or CRI-O", ((145, 420), (145, 510)),
          (152, 460, ("CRI: containers", "with CDI names"))),
    Arrow("containerd or CRI-O", "CDI specs", ((250, 537), (330, 537)), (268, 530, ("reads",))),
    Arrow("containerd or CRI-O", "container", ((145, 564), (145, 614)), (152, 593, ("runs",))),
    Arrow("nvdra-gpu-plugin", "CDI specs", ((390, 420), (390, 510)), (347, 470, ("writes",))),
    Arrow("nvdra-cd-plugin", "CDI specs", ((650, 420), (650, 450), (470, 450), (470, 510)),
          (478, 444, ("writes",))),
    Arrow("nvdra-gpu-plugin", "NVML", ((530, 420), (530, 476), (690, 476), (690, 510)),
          (540, 470, ("GPUs, MIG, health",))),
    Arrow("nvdra-cd-plugin", "NVML", ((780, 420), (780, 510)), (787, 470, ("fabric",))),
    Arrow("nvdra-imex-daemon", "nvidia-imex", ((995, 420), (995, 510)),
          (1002, 460, ("runs it, writes", "its peers"))),
    Arrow("nvidia-imex", "nvidia-imex of other nodes", ((995, 564), (995, 614)),
          (1002, 593, ("TCP",)), is_mutual=True),
    Arrow("container", "MPS control daemon", ((250, 641), (330, 641)), (264, 634, ("a pipe",))),
)  # fmt: skip


def alternative_text() -> str:
    """What the picture shows, in words."""
    ours = ", ".join(f"{box.name} ({' '.join(box.lines)})" for box in BOXES if box.is_ours)
    talk = "; ".join(
        f"{arrow.source} {'and' if arrow.is_mutual else 'to'} {arrow.target}: {arrow.told}"
        for arrow in ARROWS
    )
    return f"The parts of nvdra: {ours}. Who talks to whom: {talk}."


def svg() -> str:
    """The picture."""
    return "\n".join(_elements()) + "\n"


def _elements() -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="{SMALL}">'
    )
    yield "<!-- SPDX-License-Identifier: Apache-2.0; made by scripts/draw_architecture.py -->"
    yield "<title>The parts of nvdra, and who talks to whom</title>"
    yield f"<style>\n{_style(LIGHT)}\n@media (prefers-color-scheme: dark) {{"
    yield f"{_style(DARK)}\n}}\n</style>"
    yield (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto-start-reverse"><path class="head" d="M0 0L8 4L0 8z"/>'
        "</marker></defs>"
    )
    yield f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="8"/>'
    for x, y, width, height, name in ZONES:
        yield f'<rect class="zone" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'
        yield f'<text x="{x + 12}" y="{y + 20}" font-style="italic">{escape(name)}</text>'
    for arrow in ARROWS:
        yield from _arrow(arrow)
    for box in BOXES:
        yield from _box(box)
    yield "</svg>"


def _style(colours: dict[str, str]) -> str:
    return (
        f".page {{ fill: {colours['page']} }} text {{ fill: {colours['text']} }} "
        f".zone {{ fill: {colours['zone']} }}\n"
        f".ours {{ fill: {colours['ours']} }} .others {{ fill: {colours['others']} }} "
        f".head {{ fill: {colours['edge']} }}\n"
        f".ours, .others, .line {{ stroke: {colours['edge']}; stroke-width: 1.5 }}"
    )


def _arrow(arrow: Arrow) -> Iterator[str]:
    points = " ".join(f"{x},{y}" for x, y in arrow.path)
    start = ' marker-start="url(#head)"' if arrow.is_mutual else ""
    yield f'<polyline class="line" fill="none" points="{points}"{start} marker-end="url(#head)"/>'
    if arrow.label:
        x, y, lines = arrow.label
        yield from (
            f'<text x="{x}" y="{y + 16 * place}">{escape(line)}</text>'
            for place, line in enumerate(lines)
        )


def _box(box: Box) -> Iterator[str]:
    kind = "ours" if box.is_ours else "others"
    yield (
        f'<rect class="{kind}" x="{box.x}" y="{box.y}" width="{box.width}" '
        f'height="{box.height}" rx="5"/>'
    )
    middle = box.x + box.width // 2
    yield (
        f'<text x="{middle}" y="{box.y + 21}" text-anchor="middle" font-weight="600" '
        f'font-size="{TITLE}">{escape(box.name)}</text>'
    )
    for place, line in enumerate(box.lines):
        y = box.y + 39 + 16 * place
        yield f'<text x="{middle}" y="{y}" text-anchor="middle">{escape(line)}</text>'


def main() -> None:
    """Write the picture, and its words on the pages that show it."""
    PICTURE.write_text(svg())
    for name in PAGES:
        page = ROOT / name
        page.write_text(with_words(page.read_text()))


def with_words(page: str) -> str:
    """Return a page whose alternative text is that of the picture."""
    end = "](images/architecture.svg)"
    before, _, after = page.partition(end)
    return f"{before[: before.rindex('![')]}![{alternative_text()}{end}{after}"


if __name__ == "__main__":
    main()
