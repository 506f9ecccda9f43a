# SPDX-License-Identifier: Apache-2.0
from pathlib import Path, PurePosixPath

import pytest
import yaml
from nvdra_lab import model
from nvdra_lab.errors import LabError
from nvdra_lab.kubernetes import control_plane, node, pki
from nvdra_lab.kubernetes.platforms import PLATFORMS
from nvdra_lab.kubernetes.runtimes import RUNTIMES
from nvdra_lab.layout import CONTROL_PLANE, LabDir
from nvdra_lab.machines import machine_spec

LAB = model.plan("lab", 1, 2, "dgx-h100", "1.36.3", {})
WHERE = LabDir(Path("/var/lib/nvdra-lab/lab"))
PROGRAMS = {
    name: f"/bin/{name}"
    for name in (
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kube-proxy",
        "containerd",
        "ctr",
        "kubelet",
        "crio",
        "pinns",
        "runc-in-container",
    )
}
PARTS = node.Parts(PROGRAMS, {"PATH": "/bin"}, {"LD": "x"}, "/bin/python", ("/cache/pause.tar",))


PASSTHROUGH = model.plan("lab", 1, 2, "dgx-h100", "1.36.3", {}, has_passthrough=True)


def node_plan(lab: model.Lab = LAB) -> machine_spec.Machine:
    return node.machine(lab, lab.nodes[0], WHERE.machine("node-1"), PARTS)


def control_plane_plan(lab: model.Lab = LAB) -> machine_spec.Machine:
    return control_plane.machine(lab, WHERE.machine(CONTROL_PLANE), PROGRAMS, {"PATH": "/bin"})


def with_runtime(name: str) -> model.Lab:
    return model.plan("lab", 1, 2, "dgx-h100", "1.36.3", {}, runtime=name)


def starts(plan: machine_spec.Machine) -> list[str]:
    return [step.name for step in plan.steps if isinstance(step, machine_spec.Start)]


def flags(plan: machine_spec.Machine, unit: str) -> dict[str, str]:
    (start,) = (s for s in plan.steps if isinstance(s, machine_spec.Start) and s.name == unit)
    return dict(flag.removeprefix("--").split("=", 1) for flag in start.argv[1:])


def test_a_plan_is_read_back_as_it_was_written() -> None:
    for plan in (node_plan(), node_plan(PASSTHROUGH), control_plane_plan()):
        assert machine_spec.decode(machine_spec.encode(plan)) == plan


def test_the_folders_of_all_mounts_are_reachable_when_they_are_mounted() -> None:
    for plan in (node_plan(), node_plan(PASSTHROUGH), control_plane_plan()):
        hidden: list[str] = []
        for step in plan.steps:
            if isinstance(step, machine_spec.Bind):
                assert not any(Path(step.source).is_relative_to(path) for path in hidden), step
                hidden.append(step.target)
            if isinstance(step, machine_spec.Overlay):
                assert not any(Path(step.upper).is_relative_to(path) for path in hidden), step


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_kubelet_starts_after_its_hardware_its_runtime_and_the_api_server(runtime: str) -> None:
    lab = with_runtime(runtime)
    plan = node.machine(lab, lab.nodes[0], WHERE.machine("node-1"), PARTS)
    kinds = [getattr(step, "name", "") for step in plan.steps]
    kubelet = kinds.index("kubelet")
    assert {"hardware", runtime, "images", "kube-apiserver"} <= set(kinds[:kubelet])
    config = yaml.safe_load(node.files(lab, lab.nodes[0], PROGRAMS)["/var/lib/kubelet/config.yaml"])
    (waited,) = (step for step in plan.steps if isinstance(step, machine_spec.WaitSocket))
    assert config["containerRuntimeEndpoint"] == f"unix://{waited.path}"


def test_a_kubelet_starts_after_the_server_of_sysfs_if_there_is_one() -> None:
    plan = node_plan(PASSTHROUGH)
    kubelet = next(
        at for at, step in enumerate(plan.steps) if getattr(step, "name", "") == "kubelet"
    )
    before = plan.steps[:kubelet]
    (served,) = (step for step in before if isinstance(step, machine_spec.WaitMount))
    assert (served.name, served.path) == ("sysfs", model.SYS_ROOT)
    assert starts(plan) == ["containerd", "sysfs", "kubelet"]


def test_without_passthrough_a_node_has_the_libraries_and_the_plain_sysfs_of_before() -> None:
    plain = node_plan()
    assert starts(plain) == ["containerd", "kubelet"]
    (hardware,) = (step for step in plain.steps if getattr(step, "name", "") == "hardware")
    assert isinstance(hardware, machine_spec.Run)
    assert hardware.argv[-2:] == ("dgx-h100", "node-1")
    overlaid = [step.target for step in plain.steps if isinstance(step, machine_spec.Overlay)]
    assert overlaid == ["/etc"]


def test_the_control_plane_starts_in_the_order_of_its_needs() -> None:
    assert starts(control_plane_plan())[:2] == ["etcd", "kube-apiserver"]
    assert set(starts(control_plane_plan())[2:]) == {
        "kube-controller-manager",
        "kube-scheduler",
        "kube-proxy",
    }


def test_etcd_syncs_its_writes_and_asks_its_clients_who_they_are() -> None:
    given = flags(control_plane_plan(), "etcd")
    assert "unsafe-no-fsync" not in given
    assert given["client-cert-auth"] == "true"


def test_the_api_server_authorizes_nodes_and_roles_and_checks_its_kubelets() -> None:
    given = flags(control_plane_plan(), "kube-apiserver")
    assert given["authorization-mode"] == "Node,RBAC"
    assert "NodeRestriction" in given["enable-admission-plugins"]
    assert given["kubelet-certificate-authority"] == f"{pki.PKI}/ca.crt"
    assert given["service-cluster-ip-range"] == "10.97.0.0/16"


def test_every_component_of_an_older_release_is_told_the_gates_that_it_leaves_off() -> None:
    lab = model.plan("lab", 1, 2, "dgx-h100", "1.32.13", {})
    plan = control_plane_plan(lab)
    told = {unit: flags(plan, unit).get("feature-gates") for unit in starts(plan)}
    gates = "DRAAdminAccess=true,DRAResourceClaimDeviceStatus=true,DynamicResourceAllocation=true"
    assert told.pop("etcd") is None
    assert set(told.values()) == {f"{gates},ResourceHealthStatus=true"}
    assert node.kubelet_config(lab, lab.nodes[0])["featureGates"] == lab.gates
    assert flags(plan, "kube-apiserver")["runtime-config"] == "resource.k8s.io/v1beta1=true"


def test_a_release_that_has_all_of_it_runs_as_it_comes() -> None:
    given = flags(control_plane_plan(), "kube-apiserver")
    assert not {"feature-gates", "runtime-config"} & set(given)


def test_on_request_the_api_server_writes_down_who_asked_it_for_what() -> None:
    lab = model.plan("lab", 1, 2, "dgx-h100", "1.36.3", {}, has_audit_log=True)
    given = flags(control_plane_plan(lab), "kube-apiserver")
    policy = yaml.safe_load(control_plane.files(lab)[given["audit-policy-file"]])
    assert policy["rules"] == [{"level": "Metadata"}]
    assert given["audit-log-path"] == control_plane.AUDIT_LOG
    assert control_plane.files(LAB) == {}
    assert "audit-log-path" not in flags(control_plane_plan(), "kube-apiserver")


def test_controllers_act_under_their_own_accounts() -> None:
    given = flags(control_plane_plan(), "kube-controller-manager")
    assert given["use-service-account-credentials"] == "true"


def test_the_proxy_leaves_the_machines_connection_tracking_alone() -> None:
    given = flags(control_plane_plan(), "kube-proxy")
    assert {value for flag, value in given.items() if flag.startswith("conntrack")} == {"0"}
    assert sum(flag.startswith("conntrack") for flag in given) == 3


def test_a_kubelet_lets_nobody_in_unasked() -> None:
    config = node.kubelet_config(LAB, LAB.nodes[0])
    assert config["authentication"]["anonymous"]["enabled"] is False
    assert config["authorization"]["mode"] == "Webhook"
    assert config["authentication"]["x509"]["clientCAFile"] == f"{pki.PKI}/ca.crt"


def test_kubelets_of_one_lab_do_not_share_an_address() -> None:
    addresses = {node.kubelet_config(LAB, each)["address"] for each in LAB.nodes}
    health = {node.kubelet_config(LAB, each)["healthzBindAddress"] for each in LAB.nodes}
    assert len(addresses) == len(health) == len(LAB.nodes)


def test_every_node_is_labelled_as_one_with_gpus() -> None:
    given = flags(node_plan(), "kubelet")
    assert given["node-labels"] == "nvidia.com/gpu.present=true"


def test_pods_of_a_node_get_addresses_of_the_nodes_range() -> None:
    (ptp, _) = node.cni_config(LAB.nodes[1], None)["plugins"]
    assert ptp["ipam"]["ranges"] == [[{"subnet": "10.129.2.0/24"}]]


def test_a_node_with_few_addresses_gives_each_again_soon() -> None:
    lab = model.plan("lab", 1, 2, "dgx-h100", "1.36.3", {}, has_ipv6=True, pod_addresses=16)
    (ptp, _) = node.cni_config(lab.nodes[1], lab.pod_addresses)["plugins"]
    assert ptp["ipam"]["ranges"] == [
        [{"subnet": "fd96:1:2::/64", "rangeEnd": "fd96:1:2::11"}],
        [{"subnet": "10.129.2.0/24", "rangeEnd": "10.129.2.17"}],
    ]


@pytest.mark.parametrize("count", [0, 254])
def test_a_number_of_addresses_that_no_node_can_have_is_refused(count: int) -> None:
    with pytest.raises(LabError, match="--pod-addresses"):
        model.plan("lab", 1, 2, "dgx-h100", "1.36.3", {}, pod_addresses=count)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_configuration_file_lies_in_a_folder_of_the_nodes_own(runtime: str) -> None:
    folder = WHERE.machine("node-1")
    lab = with_runtime(runtime)
    for path in node.files(lab, lab.nodes[0], PROGRAMS):
        assert folder.on_host(path).is_relative_to(folder.root)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_platforms_kubelet_and_admission_are_those_of_the_platform(platform: str) -> None:
    like = PLATFORMS[platform]
    lab = model.plan("lab", 1, 2, "dgx-h100", "1.36.3", {}, platform=platform)
    plan = node.machine(lab, lab.nodes[0], WHERE.machine("node-1"), PARTS)
    assert flags(plan, "kubelet")["root-dir"] == like.kubelet_root
    control = control_plane_plan(lab)
    file = flags(control, "kube-apiserver").get("admission-control-config-file")
    assert (file in control_plane.files(lab)) == bool(like.admission)


@pytest.mark.parametrize("platform", ["gke", "gke-ubuntu", "talos"])
def test_a_platforms_driver_is_found_there_as_well_once_it_is_installed(platform: str) -> None:
    lab = model.plan("lab", 1, 2, "dgx-h100", "1.36.3", {}, platform=platform)
    steps = node.machine(lab, lab.nodes[0], WHERE.machine("node-1"), PARTS).steps
    names = [getattr(step, "name", getattr(step, "target", "")) for step in steps]
    like = PLATFORMS[platform]
    assert names.index(like.overlaid) < names.index("/var/lib") < names.index("hardware")
    placed = [
        step.argv[-2:]
        for step in steps
        if isinstance(step, machine_spec.Run) and step.name == "driver-root"
    ]
    assert placed == [
        (f"{model.DRIVER_ROOT}/{inside}", str(PurePosixPath(like.driver_root, there)))
        for inside, there in like.driver_files.items()
    ]
    assert names.index("hardware") < names.index("driver-root") < names.index("kubelet")
