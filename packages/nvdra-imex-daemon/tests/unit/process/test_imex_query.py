# SPDX-License-Identifier: Apache-2.0
"""Queries with a real process, a script that is named nvidia-imex-ctl."""

import sys
from pathlib import Path

import pytest
from nvdra_imex_daemon.process import imex_query
from nvdra_runtime.computedomain import imex_ctl, imex_links


def tool(directory: Path, lines: str) -> None:
    program = directory / "nvidia-imex-ctl"
    program.write_text(f"#!{sys.executable}\nimport sys, time\n{lines}\n")
    program.chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


async def test_the_query_names_the_configuration_file(path: Path) -> None:
    tool(path, "print('READY' if sys.argv[1:] == ['-c', '/imexd/imexd.cfg', '-q'] else sys.argv)")
    assert await imex_query.query_status(Path("/imexd/imexd.cfg")) == ""


async def test_output_on_standard_error_is_part_of_the_answer(path: Path) -> None:
    tool(path, "print('READY', flush=True); print('but old', file=sys.stderr)")
    assert await imex_query.query_status(path) == "nvidia-imex says READY but old"


async def test_a_query_that_hangs_times_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imex_ctl, "QUERY_TIMEOUT_S", 0.4)
    tool(path, "time.sleep(1000)")
    assert (await imex_query.query_status(path)).startswith("nvidia-imex-ctl gave no answer within")


async def test_the_query_of_the_nodes_asks_for_json(path: Path) -> None:
    tool(path, "print(sys.argv[1:], end='')")
    answer = await imex_query.query_nodes(Path("/imexd/imexd.cfg"))
    assert answer == b"['-c', '/imexd/imexd.cfg', '-N', '-j']"


async def test_a_query_of_the_nodes_that_hangs_is_killed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imex_links, "NODES_TIMEOUT_S", 0.4)
    tool(
        path, "import os; open(sys.argv[2] + '.pid', 'w').write(str(os.getpid())); time.sleep(999)"
    )
    assert await imex_query.query_nodes(path / "cfg") is None
    pid = int((path / "cfg.pid").read_text())
    assert not Path(f"/proc/{pid}").exists()


async def test_an_answer_without_end_is_cut_off(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imex_query, "_MAX_OUTPUT", 100_000)
    tool(path, "print('x' * 1_000_000)")
    answer = await imex_query.query_nodes(path)
    assert answer is not None
    assert len(answer) == 100_000
