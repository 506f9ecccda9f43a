"""What the plugin leaves at /imexd: missing, of another version, and there after all."""

from imexd import TEMPLATE, Rack


def test_imex_is_started_once_its_template_is_there_and_can_be_filled_in(rack: Rack) -> None:
    rack.equip("node-a")
    rack.template = ""
    pod = rack.start("node-a")
    rack.until(lambda: "imexd.cfg.tmpl: No such file" in str(rack.entries()), "the reason")
    template = pod.imexd / "imexd.cfg.tmpl"
    template.write_text("A={{ .SomethingNew }}\n")
    rack.until(lambda: "InvalidConfig: line 1" in str(rack.entries()), "the next reason")
    assert not pod.imex_pids()
    template.write_text(TEMPLATE)
    rack.until(lambda: rack.are_ready("node-a"), "Ready", 40)
    assert f"IMEX_CMD_BIND_INTERFACE_IP={pod.ip}" in (pod.imexd / "imexd.cfg").read_text()
