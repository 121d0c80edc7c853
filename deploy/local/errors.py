"""The errors of the local stack: one root, and a class for each thing an operator does about them."""

from __future__ import annotations


class LocalStackError(Exception):
    """The local stack could not do what was asked: read the line and, where it names one, the log."""


class FetchError(LocalStackError):
    """The broker's or the registry's files could not be installed: check the network and run `make install` again."""


class PartFailedError(LocalStackError):
    """A part of the stack did not start or died: its log, whose last lines are shown, says why."""

    def __init__(self, part: str, reason: str, log_lines: list[str]) -> None:
        self.part = part
        self.reason = reason
        self.log_lines = log_lines
        shown = "".join(f"\n  {line}" for line in log_lines)
        super().__init__(f"{part}: {reason}{shown}")


class NotReadyYetError(LocalStackError):
    """A service is late. Services that are ready stay; `highwater up --detach` waits on, `highwater down` stops everything."""


class PortTakenError(LocalStackError):
    """A port that was asked for is in use: free it or name another."""


class AlreadyRunningError(LocalStackError):
    """Another supervisor holds this data folder: use it, stop it (`highwater down`) or name another folder."""


class StartCancelledError(LocalStackError):
    """The start was interrupted; everything that had been started was stopped again."""
