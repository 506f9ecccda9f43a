"""nvdra-imex-daemon as a process becomes ready with what the plugin gives it."""

from contextlib import ExitStack
from pathlib import Path

from nvdra_testing.node import plugin
from nvdra_testing.node.domain_rig import DomainRig
from nvdra_testing.node.imex_daemons import Rack


async def test_a_daemon_becomes_ready_with_the_plugins_template(
    rig: DomainRig, tmp_path: Path
) -> None:
    await rig.start()
    domain = rig.create_domain()
    waiting = rig.start_prepare(rig.create_channel_claim(domain))
    claim = rig.create_daemon_claim(domain)
    assert not (await rig.prepare(claim)).error
    path = f"{plugin.claims_path(claim.namespace)}/{claim.name}"
    (pod,) = rig.server.request("GET", path)["status"]["reservedFor"]
    shared = rig.plugin_dir / "domains" / domain["metadata"]["uid"]
    # A pod has one address of its own; here all processes share a network.
    ours = "BIND_INTERFACE_IP={{ .IMEXCmdBindInterfaceIP }}\n"
    template = (
        (shared / "imexd.cfg.tmpl").read_text().replace("\nBIND_INTERFACE_IP=\n", f"\n{ours}")
    )
    assert f"\n{ours}" in template
    with ExitStack() as stack:
        rack = Rack(rig.server, tmp_path, domain, rig.namespace, stack, template=template)
        rack.install_driver(rig.node.name)
        rack.run_daemon(rig.node.name, pod["name"], pod["uid"], clique=rig.clique)
        answer = await waiting
        assert not answer.error, answer.error
        assert rack.pods[0].is_ready()
