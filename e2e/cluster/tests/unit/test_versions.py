# SPDX-License-Identifier: Apache-2.0
import pytest
from nvdra_lab import environment, versions
from nvdra_lab.artifacts import binaries
from nvdra_lab.errors import LabError
from nvdra_lab.kubernetes.runtimes import RUNTIMES
from nvdra_lab.progress import Progress

KNOWN = ["1.36.3", "1.35.4", "1.36.10", "1.3.9"]


@pytest.mark.parametrize(
    ("wanted", "meant"),
    [("1.36", "1.36.10"), ("v1.36", "1.36.10"), ("1.36.3", "1.36.3"), ("1.35", "1.35.4")],
)
def test_a_release_is_named_as_short_as_one_likes(wanted: str, meant: str) -> None:
    assert versions.resolve(wanted, KNOWN) == meant


@pytest.mark.parametrize("wanted", ["1.34", "1.36.4", "1", "1.3.", "latest", "", "1.36.3.1"])
def test_an_unknown_release_is_refused_with_those_that_are_known(wanted: str) -> None:
    with pytest.raises(LabError, match=r"known: 1\.3\.9, 1\.35\.4, 1\.36\.3, 1\.36\.10"):
        versions.resolve(wanted, KNOWN)


def test_a_gate_is_set_where_the_release_knows_it_and_leaves_it_off() -> None:
    gate = "DRAExtendedResource"
    told = [versions.gates(f"1.{minor}.0", {}).get(gate) for minor in range(32, 38)]
    assert told == [None, None, True, True, None, None]


def test_a_user_has_the_last_word_about_a_gate() -> None:
    gates = versions.gates("1.35.4", {"DRAExtendedResource": False, "Other": True})
    assert gates["DRAExtendedResource"] is False
    assert gates["Other"] is gates["DRADeviceTaints"] is True


@pytest.mark.parametrize("kubernetes", ["1.32.13", "1.33.13"])
def test_a_release_without_its_resource_allocation_is_told_nothing_of_it(kubernetes: str) -> None:
    gates = versions.gates(kubernetes, {versions.DRA: False})
    assert {gate for gate, on in gates.items() if on} == {"ResourceHealthStatus"}
    assert versions.runtime_config(kubernetes, gates) == ()


def test_gates_are_read_as_kubernetes_writes_them_and_nothing_else_is() -> None:
    assert versions.parse_gates("") == {}
    gates = {"A": True, "B": False}
    assert versions.parse_gates(versions.as_text(gates)) == gates
    for text in ("A", "A=1", "A=true,B"):
        with pytest.raises(LabError, match="GATE=true or GATE=false"):
            versions.parse_gates(text)


@pytest.mark.parametrize(
    "output",
    [
        "Kubernetes v1.36.3",
        "etcd Version: 1.36.3\nGit SHA: x",
        "containerd github.com/containerd/containerd/v2 v1.36.3 abc",
        "v1.36.3+gabc",
    ],
)
def test_a_program_of_the_right_version_is_recognised(output: str) -> None:
    assert binaries.says_version(output, "1.36.3")


@pytest.mark.parametrize(
    "output", ["Kubernetes v1.36.30", "v1.36.3-rc.1", "11.36.3", "v1.36.2", ""]
)
def test_a_program_of_another_version_is_not(output: str) -> None:
    assert not binaries.says_version(output, "1.36.3")


def test_kubernetes_is_linked_with_its_own_version() -> None:
    (kubernetes,) = (group for group in binaries.GROUPS if group.name == "kubernetes")
    flags = binaries.link_flags(kubernetes, "1.36.3")
    assert flags.startswith("-s -w ")
    assert "version.gitVersion=v1.36.3 " in flags
    assert flags.endswith("version.gitMinor=36")


def test_no_two_groups_build_a_program_of_the_same_name() -> None:
    of_runtimes = {runtime.group for runtime in RUNTIMES.values()}
    names = [
        name for group in binaries.GROUPS if group.name not in of_runtimes for name in group.names
    ]
    assert len(names) == len(set(names))


def test_every_group_has_one_version_but_kubernetes() -> None:
    for group in binaries.GROUPS:
        found = binaries.releases(environment.read(), group.name)
        assert len(found) == 1 or group.name == "kubernetes", (group.name, found)


def test_every_runtime_has_its_group_of_programs() -> None:
    groups = {group.name: group for group in binaries.GROUPS}
    for runtime in RUNTIMES.values():
        assert not runtime.group or not groups[runtime.group].is_of_labs


def test_an_unknown_program_is_refused_with_the_list_of_known_programs() -> None:
    with pytest.raises(LabError, match=r"unknown program: kubeadm; known: kube-apiserver, "):
        binaries.ensure(environment.read(), "1.36.3", Progress(), ["etcd", "kubeadm"])
