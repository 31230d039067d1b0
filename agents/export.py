"""From a Stable-Baselines3 model to a frozen policy file that needs no SB3 to run."""

from pathlib import Path

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy

from mqgrad.envs import BitWidthSettings
from mqgrad.envs.settings import make_settings
from mqgrad.policies.policy import FrozenPolicy

from .build import algorithm_class
from .checkpoint import load_model, load_settings
from .config import TrainConfig
from .network_layers import network_layers
from .normalization import check_observations, normalization
from .origin import load_origin, origin, provenance
from .sarsa import SarsaPolicy

_OF_THE_POLICY = (
    "widths",
    "observation",
    "history",
    "action",
    "interval",
    "opening",
    "initial_bits",
    "budget_seconds",
    "period",
    "compressor",
)


def export(model: BaseAlgorithm | str | Path, path: str | Path) -> FrozenPolicy:
    """Write the policy of a trained model to ``path`` and return it.

    The frozen policy picks exactly the actions of ``model.predict(observation, deterministic=True)``.

    Args:
        model: a model with its environment, or the ``model.zip`` of a run folder, which tells how and in what
            environment it was trained. Loading a zip runs code from it: open only your own. If it learned under
            VecNormalize, its environment must have that with its statistics, ``VecNormalize.load(file, env)``: of PPO
            and A2C that is checked, of DQN it cannot be, and without them the policy would be wrong.
        path: the ``.mqg`` file to write.

    Raises:
        ValueError: for what a frozen policy cannot hold: images, continuous actions, recurrent or custom
            networks, wrappers that change observations or actions, or a network that does not fit the
            environment's observation and widths; several environments that differ in what a policy holds; a model
            that lacks the statistics of VecNormalize; a damaged one.
        FileNotFoundError: if there is no model, or nothing says how and for what environment it was made.
    """
    config: TrainConfig | None = None
    settings: BitWidthSettings | None = None
    made_by = origin()
    if not isinstance(model, BaseAlgorithm):
        run = _run_folder(Path(model))
        config, settings, made_by = _saved_config(run), load_settings(run), load_origin(run) or made_by
        model = load_model(Path(model), algorithm_class(config.algo))
    layers, activation = network_layers(model.policy)
    check_observations(model)
    settings = settings or _settings_of(model, config)
    frozen = FrozenPolicy(
        schema=settings.schema,
        layers=layers,
        activation=activation,
        action=_action_mode(model.policy, settings),
        interval=settings.interval,
        opening=settings.opening,
        initial_bits=settings.first_bits,
        normalization=normalization(model),
        budget_seconds=settings.budget_seconds,
        provenance=provenance(model, config, settings) | made_by,
    )
    frozen.save(path)
    return frozen


def _action_mode(policy: BasePolicy, settings: BitWidthSettings) -> str:
    return "compare-widths" if isinstance(policy, SarsaPolicy) else settings.action


def _settings_of(model: BaseAlgorithm, config: TrainConfig | None) -> BitWidthSettings:
    if model.env is not None:
        return _common(model.env.get_attr("settings"))
    if config is not None:
        arguments = config.env_arguments()
        return make_settings(arguments.pop("preset", None), arguments)
    raise FileNotFoundError(
        "nothing says what environment the model was made for; give it one, or export the model.zip of its run folder"
    )


def _common(settings: list[BitWidthSettings]) -> BitWidthSettings:
    """Those of the first of several environments, which differ in nothing that a policy holds or tells of itself: in
    links, say."""
    for name in _OF_THE_POLICY:
        values = list(dict.fromkeys(getattr(each, name) for each in settings))
        if len(values) > 1:
            raise ValueError(
                f"the model learned in environments with {name}={' and '.join(map(repr, values))}, and a policy has "
                f"one: give all of them the same {name}"
            )
    return settings[0]


def _run_folder(zip_path: Path) -> Path:
    """The folder of the run that a model or one of its checkpoints belongs to."""
    if not zip_path.exists():
        raise FileNotFoundError(f"there is no model at {zip_path}")
    zip_path = zip_path.absolute()
    candidates = [zip_path.parent, *list(zip_path.parents)[1:3]]
    return next((folder for folder in candidates if (folder / "config.json").exists()), zip_path.parent)


def _saved_config(run: Path) -> TrainConfig:
    path = run / "config.json"
    if not path.exists():
        raise FileNotFoundError(
            f"there is no {path}, which says how the model was trained: export from the run folder of `mqgrad train`"
        )
    return TrainConfig.load(path)
