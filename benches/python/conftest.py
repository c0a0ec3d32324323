"""Options of the benches: `pytest benches/python --n 10M`."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--n", default="902087", help="samples: 902087 (default), 10M")
