"""Container Device Interface specs: model, validation, files and NVIDIA generation."""
