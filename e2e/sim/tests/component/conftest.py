from nvdra_sim.testing.imex_fixtures import rack
from nvdra_sim.testing.nvml_fixtures import nvml_on

__all__ = ["nvml_on", "rack"]
