# SPDX-License-Identifier: Apache-2.0
"""nvdra-imex-daemon as a process becomes ready with what the plugin gives it."""

from pathlib import Path

from nvdra_testing.node.domain_rig import DomainRig


async def test_a_daemon_becomes_ready_with_the_plugins_template(
    rig: DomainRig, tmp_path: Path
) -> None:
    await rig.start()
    domain = rig.create_domain()
    waiting = rig.start_prepare(rig.create_channel_claim(domain))
    claim = rig.create_daemon_claim(domain)
    assert not (await rig.prepare(claim)).error
    pod = rig.run_daemon(rig.create_rack(domain, tmp_path), claim)
    answer = await waiting
    assert not answer.error, answer.error
    assert pod.is_ready()
