"""nvdra-imex-daemon as a process, with what the plugin gives it, opens the way for the workload."""

from contextlib import ExitStack
from pathlib import Path

import plugin
from domain_rig import DomainRig
from imexd import Rack


async def test_a_daemon_with_the_plugins_template_gets_ready_and_the_channel_is_given(
    rig: DomainRig, tmp_path: Path
) -> None:
    await rig.start()
    domain = rig.domain()
    waiting = rig.begin(rig.channel(domain))
    claim = rig.daemon(domain)
    assert not (await rig.prepare(claim)).error
    path = f"{plugin.claims_path(claim.namespace)}/{claim.name}"
    (pod,) = rig.server.call("GET", path)["status"]["reservedFor"]
    shared = rig.plugin_dir / "domains" / domain["metadata"]["uid"]
    # A pod has one address of its own; here all processes share a network.
    ours = "BIND_INTERFACE_IP={{ .IMEXCmdBindInterfaceIP }}\n"
    template = (
        (shared / "imexd.cfg.tmpl").read_text().replace("\nBIND_INTERFACE_IP=\n", f"\n{ours}")
    )
    assert f"\n{ours}" in template
    with ExitStack() as stack:
        rack = Rack(rig.server, tmp_path, domain, rig.namespace, stack, template=template)
        rack.equip(rig.node.name)
        rack.run(rig.node.name, pod["name"], pod["uid"], clique=rig.clique)
        answer = await waiting
        assert not answer.error, answer.error
        assert rack.pods[0].is_ready()
