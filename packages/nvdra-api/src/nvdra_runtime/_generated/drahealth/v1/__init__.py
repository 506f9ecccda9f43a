"""Made by scripts/generate_protos.py from proto/; do not edit."""
