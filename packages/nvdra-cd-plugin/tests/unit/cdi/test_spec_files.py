# SPDX-License-Identifier: Apache-2.0
"""CDI spec files of claims: written, restored, and removed when no claim needs them."""

from pathlib import Path

import pytest
from nvdra_api.errors import PermanentError, Reason
from nvdra_api.ids import ClaimUID, DeviceName
from nvdra_cd_plugin.cdi import edits, spec_files
from nvdra_cd_plugin.cdi.edits import DevRoot
from nvdra_cd_plugin.cdi.spec_files import SpecFiles
from nvdra_cd_plugin.node import device_numbers
from nvdra_cdi import files
from nvdra_cdi.nvidia.options import Options

FIRST = ClaimUID("aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee")
SECOND = ClaimUID("bbbbbbbb-bbbb-cccc-dddd-eeeeeeeeeeee")
CHANNEL = DeviceName("channel-0")
EDITS = edits.channels(DevRoot("/"), [device_numbers.channel(0, 235)])


def specs(root: Path) -> SpecFiles:
    return SpecFiles(root, Options)


def path(root: Path, uid: ClaimUID) -> Path:
    return root / f"k8s.compute-domain.nvidia.com-claim_{uid}.yaml"


def test_a_claims_spec_is_named_by_its_uid_and_its_device(tmp_path: Path) -> None:
    specs(tmp_path).write(FIRST, CHANNEL, EDITS)
    name = spec_files.claim_cdi_name(FIRST, CHANNEL)
    assert name == f"k8s.compute-domain.nvidia.com/claim={FIRST}-channel-0"
    spec = files.read(path(tmp_path, FIRST))
    assert [device.name for device in spec.devices] == [f"{FIRST}-channel-0"]
    assert spec.devices[0].container_edits == EDITS


def test_an_unchanged_spec_is_not_written_again(tmp_path: Path) -> None:
    mine = specs(tmp_path)
    mine.write(FIRST, CHANNEL, EDITS)
    before = path(tmp_path, FIRST).stat().st_ino
    mine.write(FIRST, CHANNEL, EDITS)
    mine.restore()
    assert path(tmp_path, FIRST).stat().st_ino == before
    mine.write(FIRST, CHANNEL, edits.channels(DevRoot("/"), [device_numbers.channel(0, 240)]))
    assert "240" in path(tmp_path, FIRST).read_text()


def test_a_removed_or_changed_spec_is_restored(tmp_path: Path) -> None:
    mine = specs(tmp_path)
    for uid in (FIRST, SECOND):
        mine.write(uid, CHANNEL, EDITS)
    path(tmp_path, FIRST).unlink()
    path(tmp_path, SECOND).write_text("nothing")
    mine.restore()
    for uid in (FIRST, SECOND):
        assert files.read(path(tmp_path, uid)).devices[0].container_edits == EDITS


def test_a_spec_of_an_earlier_process_is_restored_if_its_claim_is_prepared(tmp_path: Path) -> None:
    specs(tmp_path).write(FIRST, CHANNEL, EDITS)
    specs(tmp_path).write(SECOND, CHANNEL, EDITS)
    other = tmp_path / "vendor.com-claim_x.yaml"
    other.touch()
    mine = specs(tmp_path)
    mine.remove_stale({FIRST})
    assert not path(tmp_path, SECOND).exists()
    assert other.exists()
    path(tmp_path, FIRST).unlink()
    mine.restore()
    assert path(tmp_path, FIRST).exists()


def test_a_removed_spec_stays_removed(tmp_path: Path) -> None:
    mine = specs(tmp_path)
    mine.write(FIRST, CHANNEL, EDITS)
    mine.remove(FIRST)
    mine.remove(FIRST)
    mine.restore()
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_directorys_place_is_reported(tmp_path: Path) -> None:
    root = tmp_path / "cdi"
    root.touch()
    with pytest.raises(PermanentError) as refused:
        specs(root).write(FIRST, CHANNEL, EDITS)
    assert refused.value.reason is Reason.DEVICE_NODE_MISSING


def test_without_a_driver_there_is_nothing_for_daemons(tmp_path: Path) -> None:
    empty = tmp_path / "driver"
    empty.mkdir()
    mine = SpecFiles(tmp_path / "cdi", lambda: Options(driver_root=str(empty)))
    with pytest.raises(PermanentError, match="driver's files") as refused:
        mine.write_base()
    assert refused.value.reason is Reason.DRIVER_MISMATCH
