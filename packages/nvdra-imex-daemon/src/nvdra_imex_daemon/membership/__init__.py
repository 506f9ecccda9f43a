"""This daemon's entry among the daemons of its clique."""
