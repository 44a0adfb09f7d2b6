"""What every test relies on."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_terminal_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output has the width planc gives it, not that of the terminal (or of a test runner) the tests run in."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("LINES", raising=False)
