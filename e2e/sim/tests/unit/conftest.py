from nvdra_sim.fixtures import sim_node, standing_node
from nvdra_sim.nvml_fixtures import nvml_on

__all__ = ["nvml_on", "sim_node", "standing_node"]
