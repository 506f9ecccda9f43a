from nvdra_sim.nvml_fixtures import nvml_on

__all__ = ["nvml_on"]
