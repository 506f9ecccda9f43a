"""The node's one pool."""

import pytest
from nvdra_api.types.ids import NodeName
from nvdra_cd_plugin import layout

NODE = NodeName("node-a")


def test_a_node_offers_a_channel_and_a_daemons_place() -> None:
    pool = layout.pool(NODE, is_usable=True, is_host_managed=False)
    (only,) = pool.slices
    told = {
        device.name: {key: value.value for key, value in device.attributes.items()}
        for device in only.devices
    }
    assert pool.name == NODE
    assert told == {
        "channel-0": {"type": "channel", "id": 0},
        "daemon-0": {"type": "daemon", "id": 0},
    }


def test_where_the_host_runs_imex_there_is_no_place_for_a_daemon() -> None:
    (only,) = layout.pool(NODE, is_usable=True, is_host_managed=True).slices
    assert [device.name for device in only.devices] == ["channel-0"]


def test_a_node_that_cannot_be_used_offers_nothing_and_says_that_it_is_there() -> None:
    (only,) = layout.pool(NODE, is_usable=False, is_host_managed=False).slices
    assert only.devices == ()


@pytest.mark.parametrize(
    ("device", "number"),
    [("channel-0", 0), ("channel-2047", 2047), ("channel-", None), ("channel-00", None),
     ("channel", None), ("daemon-0", None), ("channel--1", None), ("channel-٣", None)],
)  # fmt: skip
def test_a_devices_name_has_its_number(device: str, number: int | None) -> None:
    assert layout.number(device, layout.CHANNEL) == number
