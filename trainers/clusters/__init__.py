"""Ranks that train one model together: real processes, those of a torchrun job, virtual ones."""
