from pathlib import Path

import pytest
from nvdra_lab import cli
from nvdra_lab.requirements import PACKAGES


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("exec node-1 -- ls -l", ["ls", "-l"]),
        ("exec --name x node-1 -- sh -c --", ["sh", "-c", "--"]),
        ("kubectl get pods -A", ["get", "pods", "-A"]),
        ("kubectl exec p -- ls -l", ["exec", "p", "--", "ls", "-l"]),
        ("kubectl --name x -n default get pods", ["-n", "default", "get", "pods"]),
        ("kubectl --name=x --help", ["--help"]),
        ("helm -n y list", ["-n", "y", "list"]),
        ("sim node-1 gpu 0 lose --now", ["gpu", "0", "lose", "--now"]),
        ("helm install --set a=b x y", ["install", "--set", "a=b", "x", "y"]),
    ],
)
def test_what_follows_is_passed_on_untouched(line: str, command: list[str]) -> None:
    assert cli.parse(line.split()).command == command


def test_a_lab_has_two_nodes_of_h100_unless_told_otherwise() -> None:
    options = cli.parse(["up"])
    assert (options.nodes, options.profile, options.kube) == (2, "dgx-h100", "1.36")
    assert (options.name, options.provider) == ("lab", "local")


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.parse(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("lab ")


def test_the_list_of_packages_has_every_one_that_is_checked_for() -> None:
    listed = (Path(__file__).parents[2] / "debian-packages.txt").read_text().split()
    assert set(PACKAGES.values()) <= set(listed)
