"""How plots draw systems."""

import pytest
from matplotlib.colors import to_hex

from mqgrad.experiments.reports.labels import MOST_LINES, kind_of, short_labels, system_label, system_styles

POLICIES = tuple(f"seed-{number}.mqg" for number in range(MOST_LINES - 1))
COMPRESSORS = ("qsgd", "minmax", "terngrad", "onebit", "ecq-sgd", "top-k:0.1", "fp16", "none")
WIDTHS = tuple(f"fixed:{bits}" for bits in range(1, 9))


def test_a_frozen_second_moment_is_no_round_of_local_iterations() -> None:
    systems = ("fixed:1", "fixed:1 every 8", "fixed:1 frozen 16", "qsgd frozen 16 with momentum=0", "goodput")
    assert [kind_of(system) for system in systems] == ["fixed", "rounds", "frozen", "frozen", "rule"]


@pytest.mark.parametrize("systems", [POLICIES, ("goodput", *POLICIES[1:]), COMPRESSORS, WIDTHS])
def test_no_two_lines_of_a_plot_look_the_same(systems: tuple[str, ...]) -> None:
    styles = system_styles(["plain-ddp", *systems])
    assert len({(to_hex(style["color"]), style.get("linestyle")) for style in styles.values()}) == MOST_LINES


def test_policies_of_one_file_name_are_told_apart() -> None:
    systems = [f"{folder}/policy.mqg every 8" for folder in ("runs/a", "runs/b", "runs/of/a/long/name/c")]
    assert system_label(systems[0]) == "policy runs/a/policy.mqg every 8"
    assert len({system_label(system) for system in systems}) == 3
    short = list(short_labels(systems).values())
    assert len(set(short)) == 3
    assert max(map(len, short)) == 32
    rules = [f"goodput:widths=1/4+1/2+1+2+3+4+6+8{end}" for end in ("", "+16+32", "+16+32 every 8")]
    assert list(short_labels(rules).values()) == [
        "goodput:widths=1…1/2+1+2+3+4+6+8",
        "goodput:widths=1…2+3+4+6+8+16+32",
        "goodput:widths=1…8+16+32 every 8",
    ]
    alike = [f"runs/{folder}/policy.mqg every 8,slow_momentum=0.5" for folder in "ab"]
    assert list(short_labels(alike).values()) == [system_label(system) for system in alike]
    assert system_label("default") == "policy default" != system_label("default.mqg")


def test_a_system_looks_the_same_in_plots_that_order_systems_otherwise() -> None:
    systems = ["goodput", "default", "plain-ddp", "fixed:4", "fixed:1", "qsgd", "default:falls_back=false"]
    one, other = system_styles(systems), system_styles(systems[::-1])
    assert list(one) == systems
    assert all(to_hex(one[name]["color"]) == to_hex(other[name]["color"]) for name in systems)
