from nvdra_sim.fixtures import sim_node, standing_node
from nvdra_sim.imex_fixtures import lone_tray
from nvdra_sim.nvml_fixtures import nvml_on

__all__ = ["lone_tray", "nvml_on", "sim_node", "standing_node"]
