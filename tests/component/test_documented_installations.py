# SPDX-License-Identifier: Apache-2.0
"""`pip install dist/…` in the READMEs takes our packages from dist/, whatever an index has.

The index here has a newer version of every package that it is asked for, ours included.
"""

import json
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("packages/*/README.md"),
    *ROOT.glob("docs/*.md"),
    *ROOT.glob("docs/tasks/*.md"),
    *ROOT.glob("charts/*.md"),
]
LINE = re.compile(r"pip install ([^`#\n]*)")
HIGH = "99.0.0"


def lines() -> list[str]:
    return [found.strip() for page in PAGES for found in LINE.findall(page.read_text())]


LINES = sorted({line for line in lines() if "dist" in line})


class Index(ThreadingHTTPServer):
    """A package index that has everything; ours in a version above all others."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/simple"


class Handler(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        name = self.path.strip("/").split("/")[1]
        if self.path.startswith("/simple/"):
            self.server.asked.append(name)
            file = f"{name.replace('-', '_')}-{offered(name)}-py3-none-any.whl"
            self.answer("text/html", f'<a href="/wheels/{file}">{file}</a>'.encode())
        else:
            self.answer("application/zip", empty_wheel(name))

    def answer(self, kind: str, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def offered(name: str) -> str:
    """What the environment of the tests has, which our ranges admit."""
    try:
        return HIGH if name.startswith("nvdra") else version(name)
    except PackageNotFoundError:
        return HIGH


def empty_wheel(file: str) -> bytes:
    name, there = file.split("-")[:2]
    info = f"{name}-{there}.dist-info"
    content = BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {there}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return content.getvalue()


@contextmanager
def serving() -> Iterator[Index]:
    with Index() as index:
        thread = threading.Thread(target=index.serve_forever)
        thread.start()
        try:
            yield index
        finally:
            index.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with dist/, as `make wheels` fills it, and a pip."""
    folder = tmp_path_factory.mktemp("built")
    for package in sorted((ROOT / "packages").iterdir()):
        argv = ["uv", "build", "--quiet", "--wheel", f"--out-dir={folder / 'dist'}", str(package)]
        subprocess.run(argv, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "environment")], check=True)
    return folder


def installed(line: str, index: Index, folder: Path) -> dict[str, str]:
    """What a line would install: name → where it comes from.

    Raises:
        subprocess.CalledProcessError: pip finds no solution.
    """
    pip = folder / "environment/bin/pip"
    how = f"--dry-run --quiet --isolated --no-cache-dir --report=- --index-url={index.url}"
    done = subprocess.run(
        ["bash", "-ec", f"{pip} install {how} {line}"],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    found = json.loads(done.stdout)["install"]
    return {
        each["metadata"]["name"].replace("_", "-"): each["download_info"]["url"] for each in found
    }


def test_the_pages_have_such_lines() -> None:
    assert len(LINES) >= 8
    assert [line for line in lines() if "--find-links" in line] == []


@pytest.mark.parametrize("line", LINES)
def test_no_index_is_asked_for_our_packages(built: Path, line: str) -> None:
    with serving() as index:
        sources = installed(line, index, built)
    ours = {name: url for name, url in sources.items() if name.startswith("nvdra")}
    assert ours
    assert [url for url in ours.values() if not url.startswith("file:")] == []
    assert [name for name in index.asked if name.startswith("nvdra")] == []
    assert index.asked


def test_a_name_alone_is_taken_from_the_index(built: Path) -> None:
    """What the pages said before: the test above can fail."""
    with serving() as index:
        sources = installed("--find-links dist nvdra-cdi", index, built)
    assert sources["nvdra-cdi"].startswith(index.url.removesuffix("/simple"))
