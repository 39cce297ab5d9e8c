"""The log of an outage of the database."""

import logging

import pytest

from awa_py.db.reconnecting import _OutageLog
from tests.clock import Clock


def test_outage_of_an_hour_is_logged_nine_times(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock().install(monkeypatch, "awa_py.db.reconnecting")
    outage = _OutageLog("claims")
    with caplog.at_level(logging.DEBUG):
        for _ in range(3600):
            outage.log_failure(OSError("refused"))
            clock.now += 1
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings[:4] == [
        "claims: cannot reach the database, trying again: refused",
        "claims: cannot reach the database (for 60s), trying again: refused",
        "claims: cannot reach the database (for 3m), trying again: refused",
        "claims: cannot reach the database (for 7m), trying again: refused",
    ]
    assert len(warnings) == 9
    assert len(caplog.records) == 3600
    assert outage.duration_text == " (for 60m)"
