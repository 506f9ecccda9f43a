# SPDX-License-Identifier: Apache-2.0
"""The picture of the architecture: complete, as its tables say, and readable."""

import itertools
from xml.etree import ElementTree

import pytest

from scripts import draw_architecture
from scripts.draw_architecture import ARROWS, BOXES, DARK, LIGHT, PAGES, PICTURE, ROOT

NARROW, WIDE = 0.56, 0.62
"""The width of a letter in sizes of its font, on average over a line: plain and bold."""


def test_the_picture_is_what_its_tables_say() -> None:
    assert PICTURE.read_text() == draw_architecture.svg(), "run the script that its head names"
    assert PICTURE.stat().st_size <= 40 * 1024


def test_every_package_is_in_the_picture_and_nothing_else_is_ours() -> None:
    packages = {path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")}
    assert {box.name for box in BOXES if box.is_ours} == packages


def test_everything_that_can_be_read_is_text_of_the_file() -> None:
    root = ElementTree.fromstring(PICTURE.read_text())
    read = {each.text for each in root.iter("{http://www.w3.org/2000/svg}text")}
    words = {line for box in BOXES for line in (box.name, *box.lines)}
    words |= {line for arrow in ARROWS if arrow.label for line in arrow.label[2]}
    assert words <= read
    assert not list(root.iter("{http://www.w3.org/2000/svg}image"))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_it_with_words_that_say_the_same(name: str) -> None:
    page = (ROOT / name).read_text()
    assert f"![{draw_architecture.alternative_text()}](images/architecture.svg)" in page
    assert draw_architecture.with_words(page) == page


def test_the_words_name_every_arrow_and_what_goes_along_it() -> None:
    words = draw_architecture.alternative_text()
    known = {box.name for box in BOXES}
    for arrow in ARROWS:
        assert {arrow.source, arrow.target} <= known
        assert arrow.told
        assert arrow.told in words
    linked = {end for arrow in ARROWS for end in (arrow.source, arrow.target)}
    assert known - linked == {"nvdra-api", "nvdra-cdi"}, "libraries are in the others"


def test_an_arrow_begins_and_ends_at_its_boxes() -> None:
    boxes = {box.name: box for box in BOXES}
    shared = (360, 336)  # where the kubelet's line goes on to its second driver
    for arrow in ARROWS:
        for end, (x, y) in (
            (arrow.source, arrow.path[0]),
            (arrow.target, arrow.path[-1]),
        ):
            box = boxes[end]
            inside = box.x <= x <= box.x + box.width and box.y <= y <= box.y + box.height
            assert inside or (x, y) == shared, f"{arrow.source} → {arrow.target}: {x}, {y}"


def test_words_fit_into_their_boxes_and_boxes_beside_each_other() -> None:
    for box in BOXES:
        assert len(box.name) * draw_architecture.TITLE * WIDE <= box.width
        for line in box.lines:
            assert len(line) * draw_architecture.SMALL * NARROW <= box.width
        assert box.y + 39 + 16 * (len(box.lines) - 1) <= box.y + box.height - 6
        assert box.x + box.width <= draw_architecture.WIDTH
        assert box.y + box.height <= draw_architecture.HEIGHT
    for one, other in itertools.combinations(BOXES, 2):
        assert (
            one.x + one.width < other.x
            or other.x + other.width < one.x
            or one.y + one.height < other.y
            or other.y + other.height < one.y
        ), f"{one.name} and {other.name}"


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_lines_stand_out_from_what_they_are_on(colours: dict[str, str]) -> None:
    for ground in ("page", "zone", "ours", "others"):
        # WCAG 2, 1.4.3 for text and 1.4.11 for lines.
        assert contrast(colours["text"], colours[ground]) >= 4.5
        assert contrast(colours["edge"], colours[ground]) >= 3.0
    assert "@media (prefers-color-scheme: dark)" in PICTURE.read_text()


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours, from 1 to 21."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
