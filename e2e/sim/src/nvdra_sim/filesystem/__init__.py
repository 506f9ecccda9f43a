"""Driver root, procfs, sysfs and device nodes of a simulated node."""
