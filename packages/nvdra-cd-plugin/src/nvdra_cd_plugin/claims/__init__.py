"""Preparing and unpreparing claims for IMEX channels and daemons."""
