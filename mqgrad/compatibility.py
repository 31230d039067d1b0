"""Whether a compressor has the widths that a controller may choose."""

from .compressors import Compressor, compressor_names, make_compressor
from .controllers.base import Controller, ControllerTraits, traits_of
from .widths import Width, check_width, format_width


def check_compatible(controller: Controller | None, compressor: Compressor) -> None:
    """Find what a run would begin with, or its first decisions would run into, before it begins.

    Raises:
        ValueError: if the controller may choose, or wants trials at, a width that the compressor lacks, or widths by
            parameter where the compressor takes one for all; lists the compressors that have them. If it begins with
            a width that the compressor lacks.
    """
    if controller is None:
        return
    traits = traits_of(controller)
    if _lacking(traits, compressor):
        raise ValueError(_what_is_lacking(controller, traits, compressor))
    check_width(controller.initial_bits, compressor.widths)


def _what_is_lacking(controller: Controller, traits: ControllerTraits, compressor: Compressor) -> str:
    own, other = type(controller).__name__, type(compressor).__name__
    by_parameter = traits.parameter_widths
    wants = by_parameter or traits.choices
    has = compressor.parameter_widths if by_parameter else compressor.widths
    working = [name for name in compressor_names() if not _lacking(traits, make_compressor(name))]
    return (
        f"{own} chooses {'for each parameter ' if by_parameter else ''}among {_list(wants)} bits,"
        f" and {other} {f'has {_list(has)}' if has else 'takes one width for all parameters'}; "
        f"compressors that have these widths: {', '.join(working) or 'none'}"
        + (f"; or give {own} widths that {other} has" if has else "")
    )


def _lacking(traits: ControllerTraits, compressor: Compressor) -> set[Width]:
    side_by_side = set(traits.parameter_widths) - set(compressor.parameter_widths)
    return side_by_side | (set(traits.choices) - set(compressor.widths))


def _list(widths: tuple[Width, ...]) -> str:
    return ", ".join(map(format_width, widths))
