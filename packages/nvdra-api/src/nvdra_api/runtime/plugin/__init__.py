"""What every DRA plugin of a node is made of besides its devices; extra `plugin`."""
