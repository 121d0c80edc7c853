"""The running searches of one API process: each in a process of its own, a few at once, ended when nobody reads.

Invariants. A search uses neither the interpreter nor the memory of the API process. Its process ends with the block
that began it, also when the client disconnects.
"""

from __future__ import annotations

import asyncio
import os
import pickle
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson

from highwater.connectors.children import limit_passed
from highwater.connectors.replay.processes import command, environment, result_in, result_pipe
from highwater.connectors.replay.search_task import INVALID, MISSING, UNAVAILABLE
from highwater.schemas.errors import HighwaterError, UnavailableError
from highwater.schemas.exact_json import read_json

# A process takes 80 MB before it reads and, if nothing else needs it, a core. One caller has one page and one download.
AT_ONCE_MAX = 4
AT_ONCE_OF_CALLER_MAX = 2
_PROGRAM = "from highwater.connectors.replay.search_process import main; main()"
# The first line holds a cursor: 40 bytes a partition.
_FIRST_LINE_BYTES_MAX = 1 << 20
# Libraries are loaded, and Kafka and the registry queried; each of those times out after 10 to 15 seconds by itself.
BEGIN_SECONDS_MAX = 60.0
_CHUNK_BYTES = 1 << 16


class SearchRefusedError(HighwaterError):
    """The search is invalid. Correct what the message names."""


class TooManySearchesError(HighwaterError):
    """This process runs its maximum number of searches. Stop one, or try again when one has ended."""


class SearchLostError(UnavailableError):
    """The process of a search ended before it was done. Search again."""


class TopicMissingError(HighwaterError):
    """The broker has no such topic. Check its name."""


_REFUSALS: Mapping[str, type[HighwaterError]] = {
    INVALID: SearchRefusedError,
    MISSING: TopicMissingError,
    UNAVAILABLE: UnavailableError,
}


class Searches:
    """Starts and counts searches, or similar work."""

    def __init__(
        self,
        program: str | None = None,
        *,
        at_once_max: int = AT_ONCE_MAX,
        of_caller_max: int = AT_ONCE_OF_CALLER_MAX,
        begin_seconds_max: float = BEGIN_SECONDS_MAX,
    ) -> None:
        """`program` is a line of Python that runs the tasks; None: that of searches."""
        self._program = program
        self._at_once_max = at_once_max
        self._of_caller_max = of_caller_max
        self._begin_seconds_max = begin_seconds_max
        self._running: Counter[Hashable] = Counter()

    @asynccontextmanager
    async def open(self, task: object, caller: Hashable) -> AsyncIterator[RunningSearch]:
        """Yield a running search.

        Raises:
            TopicMissingError: there is no such topic.
            SearchRefusedError: a position, the cursor or the condition is invalid.
            TooManySearchesError: too many run.
            UnavailableError: Kafka or the registry does not answer.
        """
        if self._running.total() >= self._at_once_max or self._running[caller] >= self._of_caller_max:
            raise TooManySearchesError(
                f"{self._running[caller]} of your searches and {self._running.total()} in all are running; "
                f"at most {self._of_caller_max} and {self._at_once_max} run at once"
            )
        self._running[caller] += 1
        try:
            async with _process(self._program or _PROGRAM) as (process, result):
                running = RunningSearch(process, result)
                await running.begin_with(task, self._begin_seconds_max)
                yield running
        finally:
            self._running[caller] -= 1
            self._running += Counter()  # forget callers without searches


class RunningSearch:
    """One search: its first line, and its further output."""

    def __init__(self, process: asyncio.subprocess.Process, result: int) -> None:
        """`result` is a pipe that holds why the process has failed, once it has ended."""
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._result = result
        self._input, self._output = process.stdin, process.stdout
        self.first_line = b""
        self.begin: dict[str, Any] = {}

    async def begin_with(self, task: object, seconds_max: float = BEGIN_SECONDS_MAX) -> None:
        """Send the task and read the first line.

        Raises:
            TopicMissingError, SearchRefusedError: there is no such topic, or the search is invalid, or needs too much.
            UnavailableError: Kafka or the registry does not answer, or the process has ended.
        """
        # Standard input stays open: the process ends when it is closed.
        self._input.write(pickle.dumps(task))
        with suppress(ConnectionError):  # it has ended already; its closed output will show this
            await self._input.drain()
        try:
            self.first_line = await asyncio.wait_for(self._output.readline(), seconds_max)
        except TimeoutError as error:
            raise SearchLostError(f"the search did not begin within {seconds_max:.0f} s") from error
        if not self.first_line:
            raise await self._end()
        self.begin = orjson.loads(self.first_line)
        if self.begin["event"] == "refused":
            raise _REFUSALS[self.begin["reason"]](self.begin["detail"])

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield what follows the first line, as it comes.

        Raises:
            SearchLostError: it ended early.
        """
        while chunk := await self._output.read(_CHUNK_BYTES):
            yield chunk
        if await self._process.wait() != 0:
            raise SearchLostError(str(await self._end()))

    async def _end(self) -> HighwaterError:
        """Return why the process ended early: at a limit the search itself is at fault."""
        status = await self._process.wait()
        reason, limit = result_in(self._result), limit_passed(status)
        if limit is not None:
            return SearchRefusedError(f"the process of the search {limit}; narrow the search")
        return SearchLostError(str(reason or f"the process of the search ended with {status} before it was done"))

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the parsed lines after the first.

        Raises:
            SearchLostError: they ended early.
        """
        rest = b""
        async for chunk in self.chunks():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield read_json(line)


@asynccontextmanager
async def _process(program: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """Start a process that waits for its task and ends with the block; the pipe holds why it failed."""
    with result_pipe() as (result, inherited):
        try:
            process = await asyncio.create_subprocess_exec(
                *command(program, str(inherited)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=environment(),
                limit=_FIRST_LINE_BYTES_MAX,
                pass_fds=(inherited,),
                start_new_session=True,  # so that Ctrl-C reaches only the API, which ends its searches
            )
        finally:
            os.close(inherited)
        try:
            yield process, result
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            # Also for a cancelled request: a process that is not waited for remains as a zombie.
            await asyncio.shield(process.wait())
