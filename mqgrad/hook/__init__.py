"""One compressed run: the state and the hook of DDP, iterations, rounds, decisions, checkpoints."""
