"""The errors of the local stack: one root, and a class for each action of an operator."""

from __future__ import annotations


class LocalStackError(Exception):
    """The local stack failed: read the message and, if it names one, the log."""


class FetchError(LocalStackError):
    """The broker's or the registry's files could not be installed: check the network and run `make install` again."""


class PartFailedError(LocalStackError):
    """A service of the stack did not start, or died: the last lines of its log, shown here, say why."""

    def __init__(self, part: str, reason: str, log_lines: list[str]) -> None:
        self.part = part
        self.reason = reason
        self.log_lines = log_lines
        shown = "".join(f"\n  {line}" for line in log_lines)
        super().__init__(f"{part}: {reason}{shown}")


class MisconfiguredError(LocalStackError):
    """A role cannot use a setting, so that no restart helps: correct it and start again; everything was stopped."""


class NotReadyYetError(LocalStackError):
    """A service is late. Ready services keep running; `highwater up --detach` waits again, `highwater down` stops all."""


class PortTakenError(LocalStackError):
    """The configured port is in use: free it or set another."""


class AlreadyRunningError(LocalStackError):
    """Another supervisor uses this data folder: use its stack, stop it (`highwater down`) or set another folder."""


class StartCancelledError(LocalStackError):
    """The start was interrupted; everything that had been started was stopped again."""
