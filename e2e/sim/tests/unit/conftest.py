from nvdra_sim.fixtures import sim_node, standing_node

__all__ = ["sim_node", "standing_node"]
