"""The test run refuses a compiled core that was made from other sources than those beside it."""

from __future__ import annotations

import pytest

from tests.kit import build


def pytest_configure(config: pytest.Config) -> None:
    if not build.is_current():
        raise pytest.UsageError("kbroker/_core has changed since it was compiled: run make build")
