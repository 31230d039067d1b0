"""The command ``mqgrad export``."""

from pathlib import Path
from typing import Annotated

import typer

from mqgrad.run_folder import check_file

from .options import print_paths


def export(
    run: Annotated[Path, typer.Argument(help="Run folder of `mqgrad train`, or its model.zip.")],
    policy: Annotated[Path, typer.Argument(help="File to write, e.g. policy.mqg.")],
) -> None:
    """Freeze a trained policy into one file without code, for deployment.

    Of a run folder the model that has learned longest: that of its last checkpoint where the run ended before its
    model.zip could be written.

    Loading a model.zip runs code from it (it is Stable-Baselines3's format): export only your own. The file that is
    written holds tensors and JSON and is safe to share.
    """
    from mqgrad.agents.checkpoint import newest_model
    from mqgrad.agents.export import export as export_model

    if policy.suffix != ".mqg":
        raise typer.BadParameter(
            f"{policy} is to end in .mqg, by which --controller knows policies", param_hint="POLICY"
        )
    check_file(policy)
    model = newest_model(run) if run.is_dir() else run
    facts = export_model(model, policy).provenance
    print_paths(f"{policy}: {facts['algorithm']} after {facts['steps']} decisions, from {model}")
