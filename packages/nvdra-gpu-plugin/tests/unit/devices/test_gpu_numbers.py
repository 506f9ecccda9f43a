# SPDX-License-Identifier: Apache-2.0
"""Which numbers GPUs have in their names."""

import json
from pathlib import Path

import pytest
from hypothesis import given, strategies
from nvdra_api.ids import GpuUUID
from nvdra_gpu_plugin.devices.gpu_numbers import FIRST_FREE, GpuNumbers

BOOT = "boot-1"


def gpu(letter: str) -> GpuUUID:
    return GpuUUID(f"GPU-{letter}")


def numbers_of(held: dict[GpuUUID, int], plugin_dir: Path = Path(), boot: str = BOOT) -> GpuNumbers:
    return GpuNumbers(lambda: held, plugin_dir, boot)


def test_a_number_is_the_minor_number() -> None:
    assert numbers_of({}).number(gpu("a"), 3) == 3


def test_a_held_gpu_keeps_its_number_and_the_heir_of_its_minor_number_gets_a_free_one() -> None:
    numbers = numbers_of({gpu("a"): 4, gpu("gone"): 5})
    assert numbers.number(gpu("b"), 4) == FIRST_FREE
    assert numbers.number(gpu("c"), 5) == FIRST_FREE + 1
    assert numbers.number(gpu("a"), 3) == 4
    assert numbers.number(gpu("d"), 6) == 6


def test_a_number_lasts_for_the_boot(tmp_path: Path) -> None:
    held = {gpu("a"): 4}
    numbers = numbers_of(held, tmp_path)
    first = [numbers.number(gpu("a"), 3), numbers.number(gpu("b"), 4)]
    numbers.keep()
    held.clear()
    for each in (numbers, numbers_of({}, tmp_path)):
        each.read()
        assert [each.number(gpu("a"), 3), each.number(gpu("b"), 4)] == first
        assert each.number(gpu("c"), 4) == FIRST_FREE + 1
    rebooted = numbers_of({}, tmp_path, "boot-2")
    rebooted.read()
    assert [rebooted.number(gpu("a"), 3), rebooted.number(gpu("b"), 4)] == [3, 4]


def test_nothing_is_written_while_numbers_are_minor_numbers(tmp_path: Path) -> None:
    numbers = numbers_of({gpu("a"): 0}, tmp_path)
    numbers.number(gpu("a"), 0)
    numbers.keep()
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", json.dumps({"boot_id": BOOT}).encode()])
def test_a_file_that_cannot_be_read_counts_for_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "gpu-numbers.json").write_bytes(content)
    numbers = numbers_of({}, tmp_path)
    numbers.read()
    assert numbers.number(gpu("a"), 1) == 1


def test_a_directory_that_cannot_be_written_is_reported_only(tmp_path: Path) -> None:
    numbers = numbers_of({gpu("a"): 1}, tmp_path / "missing")
    assert numbers.number(gpu("a"), 0) == 1
    numbers.keep()
    assert numbers.number(gpu("a"), 0) == 1


LETTERS = "abcdefgh"
UUIDS = strategies.sampled_from([gpu(letter) for letter in LETTERS])
HELD = strategies.dictionaries(UUIDS, strategies.integers(0, 9)).map(
    lambda held: {uuid: number for number, uuid in {n: u for u, n in held.items()}.items()}
)


@given(boots=strategies.lists(strategies.tuples(HELD, strategies.permutations(range(8)))))
def test_no_two_gpus_have_one_number_and_each_held_one_has_its_own(
    boots: list[tuple[dict[GpuUUID, int], list[int]]],
) -> None:
    """Whatever claims hold and end, and however often the driver numbers GPUs anew in a boot."""
    for drawn, minors in boots:
        held = dict(drawn)
        numbers = numbers_of(held)
        for still_held in (dict(held), {}):
            found = {
                gpu(letter): numbers.number(gpu(letter), minor)
                for letter, minor in zip(LETTERS, minors, strict=True)
            }
            assert len({*found.values()}) == len(found)
            assert all(found[uuid] == number for uuid, number in still_held.items())
            held.clear()
