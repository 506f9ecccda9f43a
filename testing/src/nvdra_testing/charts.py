"""Where the charts of this repository are."""

from pathlib import Path

CHARTS = Path(__file__).parents[3] / "charts"
UMBRELLA = "nvdra"
COMPONENTS = ("nvdra-gpu-plugin", "nvdra-cd-plugin", "nvdra-cd-controller", "nvdra-webhook")


def folder(name: str, charts: Path = CHARTS) -> Path:
    """The umbrella chart, or the chart of a component, which is a part of it."""
    umbrella = charts / UMBRELLA
    return umbrella if name == UMBRELLA else umbrella / "charts" / name
