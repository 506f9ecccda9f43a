"""How failure reasons are provoked, raised and reported."""
