"""The constants of `highwater capacity` against a run at a thousandth of 30,000 users. On demand: it takes minutes."""

from __future__ import annotations

import os
from dataclasses import asdict

import pytest

from highwater.streams.capacity import MEASURED
from tests.acceptance.operating.measuring import measure
from tests.product import Product

pytestmark = pytest.mark.long

# A machine may be this much faster or slower than that of the constants; sizes depend on it less.
CPU_FACTOR, BYTES_FACTOR = 4.0, 2.0


@pytest.mark.skipif("HIGHWATER_CAPACITY" not in os.environ, reason="set HIGHWATER_CAPACITY=1: it takes minutes")
def test_a_thousandth_costs_what_the_model_says(product: Product):
    """30 users, 20 channels and 2,000 insights: each measured cost is within a factor of the constant."""
    found, counted = measure(product, users=30, channels=20, insights=2_000, reads=500)
    print(found, counted)
    off = {
        name: (value, asdict(MEASURED)[name])
        for name, value in asdict(found).items()
        if not 1 / (factor := BYTES_FACTOR if name.endswith("bytes") else CPU_FACTOR)
        <= value / asdict(MEASURED)[name]
        <= factor
    }
    assert off == {}
