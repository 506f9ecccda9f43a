# SPDX-License-Identifier: Apache-2.0
from nvdra_sim.testing.imex_fixtures import local_tray, rack
from nvdra_sim.testing.node_fixtures import shared_node, sim_node
from nvdra_sim.testing.nvml_fixtures import nvml_on
from nvdra_sim.testing.passthrough_fixtures import served_node

__all__ = ["local_tray", "nvml_on", "rack", "served_node", "shared_node", "sim_node"]
