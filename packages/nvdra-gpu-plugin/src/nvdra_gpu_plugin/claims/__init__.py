"""Preparing and unpreparing claims for GPUs."""
