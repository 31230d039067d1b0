"""Seeds, whoever's integers they are."""

import numpy as np
import pytest

from mqgrad.seeding import check_seed, stream_seed


@pytest.mark.parametrize("seed", [0, -3, 2**31, 2**63 - 1])
def test_numpys_integers_are_as_good_as_pythons(seed: int) -> None:
    checked = check_seed(np.int64(seed))
    assert type(checked) is int
    assert checked == seed
    assert stream_seed(np.int64(seed), 7, 1) == stream_seed(seed, 7, 1)


@pytest.mark.parametrize("seed", [1.0, "3", None, 2**64, -(2**63) - 1])
def test_what_is_no_seed_is_named(seed: object) -> None:
    with pytest.raises(ValueError, match=r"seed .* must be an integer of at most 64 bits"):
        check_seed(seed)
