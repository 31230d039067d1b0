"""Command line, demo and benchmarks."""
