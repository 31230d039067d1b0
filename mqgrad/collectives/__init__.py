"""What ranks exchange, in which order, and what it costs."""
