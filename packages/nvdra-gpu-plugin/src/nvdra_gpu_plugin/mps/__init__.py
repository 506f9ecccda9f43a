"""The MPS control daemons of claims whose devices are shared by MPS."""
