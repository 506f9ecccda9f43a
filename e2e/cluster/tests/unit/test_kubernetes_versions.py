import pytest
from nvdra_lab import binaries, versions
from nvdra_lab.errors import LabError

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


def test_a_gate_is_set_only_where_the_release_knows_it() -> None:
    assert "DRAExtendedResource" not in versions.gates("1.33.13")
    assert versions.gates("1.36.3")["DRAExtendedResource"] is True


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
    names = [name for group in binaries.GROUPS for name in group.programs]
    assert len(names) == len(set(names))
