"""One seed gives one training and one score: else a score does not compare with the last one.

Who means to change what is drawn trains and scores again, and writes the file anew (`training_draws`).
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.support import training_draws

pytestmark = pytest.mark.peer


@pytest.mark.parametrize("name", training_draws.EXACT)
def test_a_seed_draws_what_it_drew(name: str) -> None:
    assert training_draws.digest(name) == training_draws.kept()[0][name]


def test_a_seed_draws_the_same_pictures() -> None:
    """To half a level of a part's mean colour, which leaves Pillow's releases room."""
    found, wanted = training_draws.drawn().astype(int), training_draws.kept()[1].astype(int)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= 50
