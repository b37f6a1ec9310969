"""Other libraries' own tests pass on our nodes: the numbers are in `suites.py`."""

from __future__ import annotations

import pytest

from tests.interop.suites import SUITES, OfflineError, results_of

pytestmark = pytest.mark.slow


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SUITES)
def test_libraries_pass_their_own_tests_on_nodes(name: str) -> None:
    try:
        results = results_of(name)
    except OfflineError as error:
        pytest.skip(f"the tests of {name} can't be fetched: {error}")

    assert len(results.passed) >= SUITES[name].floor, str(results)
