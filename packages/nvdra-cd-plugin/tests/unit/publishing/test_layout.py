# SPDX-License-Identifier: Apache-2.0
"""The pool that the node publishes."""

from nvdra_api.ids import NodeName, PoolName
from nvdra_cd_plugin.publishing import layout

NODE = NodeName("node-a")


def test_a_node_offers_a_channel_and_a_daemon() -> None:
    pool = layout.pool(NODE, is_usable=True, is_host_managed=False)
    (only,) = pool.slices
    attributes = {
        device.name: {key: value.value for key, value in device.attributes.items()}
        for device in only.devices
    }
    assert pool.name == PoolName(NODE)
    assert attributes == {
        "channel-0": {"type": "channel", "id": 0},
        "daemon-0": {"type": "daemon", "id": 0},
    }


def test_no_daemon_is_offered_where_the_host_runs_imex() -> None:
    (only,) = layout.pool(NODE, is_usable=True, is_host_managed=True).slices
    assert [device.name for device in only.devices] == ["channel-0"]


def test_a_node_that_cannot_be_used_publishes_an_empty_slice() -> None:
    (only,) = layout.pool(NODE, is_usable=False, is_host_managed=False).slices
    assert only.devices == ()
