"""What is mounted on the host. Effects, reading only."""

from pathlib import Path


def mount_points() -> set[str]:
    """Every mount point this process sees."""
    return {
        _unescape(line.split()[4]) for line in Path("/proc/self/mountinfo").read_text().splitlines()
    }


def _unescape(path: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, character)
    return path
