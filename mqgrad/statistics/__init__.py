"""What a run shows of itself to controllers and policies."""
