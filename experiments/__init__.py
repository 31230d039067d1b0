"""Command line, demo, shaped-network lab, comparisons with their reports, benchmarks."""
