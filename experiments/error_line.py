"""What a person is told where a command ends in an error."""

from mqgrad.trainers.clusters.errors import OF_A_PROGRAM, WorkerError

_MISTAKES = ("ValueError: ", "OSError: ", "FileNotFoundError: ", "ModuleNotFoundError: ")
_MORE = "MQGRAD_TRACEBACK=1 shows where"


def error_line(error: Exception) -> str:
    """One sentence, where one says it; a failed rank's own traceback where it is needed to understand.

    A mistake that only a rank could find, such as a batch larger than its data, is told like one found here.
    """
    if isinstance(error, WorkerError):
        lines = error.details.strip().splitlines()
        if lines and lines[-1].startswith(_MISTAKES):
            return f"rank {error.rank}: {lines[-1].partition(': ')[2]} ({_MORE})"
        if error.remedy in OF_A_PROGRAM:
            error = WorkerError(error.rank, error.reason, error.details)
        return str(error)
    if isinstance(error, (RuntimeError, ImportError)):
        return f"{error} ({_MORE})"
    return str(error) or f"{type(error).__name__} ({_MORE})"
