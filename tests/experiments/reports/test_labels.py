"""How plots draw systems."""

import pytest
from matplotlib.colors import to_hex

from mqgrad.experiments.reports.labels import MOST_LINES, system_styles

POLICIES = tuple(f"seed-{number}.mqg" for number in range(MOST_LINES - 1))
COMPRESSORS = ("qsgd", "minmax", "terngrad", "onebit", "ecq-sgd", "top-k:0.1", "fp16", "none")
WIDTHS = tuple(f"fixed:{bits}" for bits in range(1, 9))


@pytest.mark.parametrize("systems", [POLICIES, ("goodput", *POLICIES[1:]), COMPRESSORS, WIDTHS])
def test_no_two_lines_of_a_plot_look_the_same(systems: tuple[str, ...]) -> None:
    styles = system_styles(["plain-ddp", *systems])
    assert len({(to_hex(style["color"]), style.get("linestyle")) for style in styles.values()}) == MOST_LINES
