# SPDX-License-Identifier: Apache-2.0
"""Opaque parameters that exceed a bound: their own claim is refused, and nothing else changes."""

from nvdra_testing import extreme_json
from nvdra_testing.control_plane.apiserver import RawJson
from nvdra_testing.node import plugin
from nvdra_testing.node.rig import Rig


async def test_a_config_beyond_a_bound_is_refused_and_other_claims_are_prepared(rig: Rig) -> None:
    await rig.start()
    process = rig.process
    extreme = {
        what: rig.create_claim("gpu-0", config=[plugin.opaque_config(RawJson(parameters))])
        for what, (parameters, _) in extreme_json.PARAMETERS.items()
    }
    other = rig.create_claim("gpu-1")
    for _ in range(2):  # the kubelet repeats a call that has failed
        answers = await rig.dra.prepare([*extreme.values(), other], timeout_s=30)
        assert not answers[other.uid].error
        for what, (_, says) in extreme_json.PARAMETERS.items():
            error = answers[extreme[what].uid].error
            assert error.startswith("InvalidConfig: "), (what, error)
            assert "opaque.parameters" in error, (what, error)
            assert says in error, (what, error)

    def reported() -> set[str]:
        return {event["involvedObject"]["uid"] for event in rig.events("InvalidConfig")}

    uids = {claim.uid for claim in extreme.values()}
    await rig.wait_until(lambda: uids <= reported(), "an Event of each claim")
    assert rig.process is process
    assert process.get("/healthz")[0] == 200
    assert rig.recorded_claims().keys() == {other.uid}
