# SPDX-License-Identifier: Apache-2.0
"""A program that is forked behaves as one that is started from its file."""

import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from nvdra_testing import preloaded, programs
from nvdra_testing.control_plane import apiserver

READY_S = 60


def start(
    directory: Path, argv: Sequence[str], **variables: str
) -> "tuple[subprocess.Popen[bytes], Path, Path]":
    output, errors = directory / "output", directory / "errors"
    with output.open("wb") as out, errors.open("wb") as err:
        return preloaded.start(argv, {**os.environ, **variables}, out, err), output, errors


@pytest.mark.parametrize(
    "argv",
    [("lab", "--version"), ("lab", "env", "--name", "nobody"), ("lab", "nothing")],
    ids=" ".join,
)
def test_output_errors_and_exit_code_are_the_same(
    argv: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for is_used in (True, False):
        monkeypatch.setattr(preloaded, "is_used", is_used)
        process, output, errors = start(tmp_path, argv)
        assert isinstance(process, preloaded.ForkedProgram) == is_used
        status = process.wait(READY_S)
        assert process.poll() == process.returncode == status
        found.append((status, output.read_text(), errors.read_text()))
    assert found[0] == found[1]


def test_a_forked_program_has_its_own_name_variables_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preloaded, "is_used", True)
    identity = ("--namespace=a", "--pod-name=b", "--image-name=c", "--node-name=d")
    ports = ("--http-endpoint=", "--debug-endpoint=", "--log-verbosity-cd-daemon=0")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # an API server that never answers
        config = apiserver.kubeconfig(f"http://127.0.0.1:{silent.getsockname()[1]}", Path(), {})
        path = tmp_path / "kubeconfig"
        path.write_text(config)
        argv = ("nvdra-cd-controller", *identity, *ports, f"--kubeconfig={path}")
        process, _, errors = start(tmp_path, argv)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        assert process.poll() is None, errors.read_text()
        assert Path(f"/proc/{process.pid}/comm").read_text().strip() == "nvdra-cd-contro"
        process.kill()
        assert process.wait(READY_S) == -signal.SIGKILL


def test_a_variable_that_imports_read_starts_the_program_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preloaded, "is_used", True)
    process, _, _ = start(tmp_path, ("lab", "--version"), PYTHONOPTIMIZE="1")
    assert not isinstance(process, preloaded.ForkedProgram)
    assert process.wait(READY_S) == 0


def test_the_programs_of_another_environment_are_started_where_the_tests_are_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preloaded, "is_used", True)
    program = tmp_path / "lab"
    program.write_text("#!/bin/sh\necho another\n")
    program.chmod(0o755)
    monkeypatch.setenv(programs.VARIABLE, str(tmp_path))
    assert programs.path("lab") == program
    process, output, _ = start(tmp_path, ("lab", "--version"))
    assert process.wait(READY_S) == 0
    assert output.read_text() == "another\n"
