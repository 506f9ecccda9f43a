# SPDX-License-Identifier: Apache-2.0
"""The template at /imexd: missing, not supported, and valid."""

from nvdra_testing.node.imex_daemons import TEMPLATE, Rack


def test_imex_is_started_once_its_template_is_valid(rack: Rack) -> None:
    rack.install_driver("node-a")
    rack.template = ""
    pod = rack.start_pod("node-a")
    rack.wait_until(lambda: "imexd.cfg.tmpl: No such file" in str(rack.entries()), "the reason")
    template = pod.imexd / "imexd.cfg.tmpl"
    template.write_text("A={{ .SomethingNew }}\n")
    rack.wait_until(lambda: "InvalidConfig: line 1" in str(rack.entries()), "the next reason")
    assert not pod.imex_pids()
    template.write_text(TEMPLATE)
    rack.wait_until(lambda: rack.are_ready("node-a"), "Ready")
    assert f"IMEX_CMD_BIND_INTERFACE_IP={pod.ip}" in (pod.imexd / "imexd.cfg").read_text()
