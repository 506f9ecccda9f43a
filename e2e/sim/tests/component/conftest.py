from nvdra_sim.imex_fixtures import rack
from nvdra_sim.nvml_fixtures import nvml_on

__all__ = ["nvml_on", "rack"]
