"""What is told of an exception to a thread that it does not reach."""

import traceback


def described(failure: BaseException) -> str:
    """Its type, its text, and where it was raised."""
    frames = traceback.extract_tb(failure.__traceback__)
    place = f" (in {frames[-1].name}, {frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{_named(failure)}{place}"


def short_description(failure: BaseException) -> str:
    """The same, or no more than the text where that tells all, as of the package's own, which are RuntimeErrors."""
    if type(failure) is RuntimeError and str(failure):
        return str(failure)
    return _named(failure) if isinstance(failure, RuntimeError) else described(failure)


def _named(failure: BaseException) -> str:
    return f"{type(failure).__name__}: {failure}" if str(failure) else type(failure).__name__
