"""``mqgrad bench``: how fast coding and sending are here."""
