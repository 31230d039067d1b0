"""Settings of the whole suite."""

try:
    import hypothesis
except ModuleNotFoundError:  # tests/cuda_ext/test_cuda.py runs without it
    pass
else:
    # Speed is measured in benchmarks: a busy machine must not fail a property. Derandomized, so that red is red
    # again.
    hypothesis.settings.register_profile("suite", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("suite")
