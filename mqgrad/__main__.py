"""The ``mqgrad`` command, which needs the training side of the package."""

import sys


def main() -> None:
    """Hand over to the command line, or say what to install."""
    try:
        from mqgrad.experiments.cli import main as command_line
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        sys.exit(
            f"the mqgrad command needs {error.name}: in a checkout, pip install --no-build-isolation '.[train]'"
        )
    command_line()


if __name__ == "__main__":
    main()
