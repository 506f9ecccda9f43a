# SPDX-License-Identifier: Apache-2.0
from nvdra_sim.testing.mps_fixtures import mps
from nvdra_sim.testing.node_fixtures import shared_node, sim_node
from nvdra_sim.testing.nvml_fixtures import nvml_on

__all__ = ["mps", "nvml_on", "shared_node", "sim_node"]
