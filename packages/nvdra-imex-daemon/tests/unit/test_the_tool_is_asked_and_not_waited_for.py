"""Asking nvidia-imex-ctl as a real process, here a few lines of Python under its name."""

import sys
from pathlib import Path

import pytest
from nvdra_api.protocol import imex
from nvdra_imex_daemon import ctl


def tool(directory: Path, lines: str) -> None:
    program = directory / "nvidia-imex-ctl"
    program.write_text(f"#!{sys.executable}\nimport sys, time\n{lines}\n")
    program.chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


async def test_it_is_asked_with_the_configuration_and_its_word_counts(path: Path) -> None:
    tool(path, "print('READY' if sys.argv[1:] == ['-c', '/imexd/imexd.cfg', '-q'] else sys.argv)")
    assert await ctl.lack(Path("/imexd/imexd.cfg")) == ""


async def test_what_it_says_on_standard_error_counts_as_well(path: Path) -> None:
    tool(path, "print('READY', flush=True); print('but old', file=sys.stderr)")
    assert await ctl.lack(path) == "nvidia-imex says READY but old"


async def test_one_that_hangs_is_given_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imex, "TIMEOUT_S", 0.4)
    tool(path, "time.sleep(1000)")
    assert (await ctl.lack(path)).startswith("nvidia-imex-ctl gave no answer within")
