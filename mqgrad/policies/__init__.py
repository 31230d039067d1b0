"""Frozen policies: what they observe, their network, their file, and the packaged one."""
