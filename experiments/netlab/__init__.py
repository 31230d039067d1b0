"""``mqgrad netlab``: hosts on one machine, joined by links that the kernel shapes."""
