"""A condition has limits of memory and time wherever it is used, and its process ends with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from highwater.connectors.replay import counting
from highwater.connectors.replay import where as module
from highwater.connectors.replay.counting import Counting, TooManyValuesError
from highwater.connectors.replay.counts import Counts
from highwater.connectors.replay.running import Chooser
from highwater.connectors.replay.where import Where, WhereError
from tests import ROOT
from tests.unit.replay.making import TOPIC, batch, decoder_of, encoded, insight, own_text

DECODER = decoder_of()
BATCH = DECODER.decode(batch([encoded(insight(text="a" * 1_000), own_text()) for _ in range(3)]))
# Ten million steps for one record.
SLOW = "lists.range(3000).all(a, lists.range(3000).all(b, a + b >= 0))"


def processes() -> list[psutil.Process]:
    """The processes of conditions that this one has started."""
    return [one for one in psutil.Process().children() if "replay.condition" in " ".join(one.cmdline())]


@pytest.mark.parametrize(
    "text",
    [
        "lists.range(40000000).map(a, [a]).size() > 0",
        "value.text.replace('', value.text).replace('', value.text).size() > 0",
    ],
)
def test_a_condition_ends_at_the_limit_of_memory(text: str) -> None:
    """One of a list that it makes, and one of a thousand letters of a record."""
    where = Where(text, DECODER.arrow_type, TOPIC)
    with pytest.raises(WhereError, match="needed more memory than it may have"):
        where.kept(BATCH)
    where.close()
    assert processes() == []


def test_a_condition_ends_at_the_limit_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the processor, for one batch; nothing interrupts it within a record."""
    monkeypatch.setattr(module, "BATCH_SECONDS_MAX", 0.1)
    where = Where(SLOW, DECODER.arrow_type, TOPIC)
    with pytest.raises(WhereError, match=r"--where, line 1, column 1: it took more time than it may have"):
        where.require_condition()
    with pytest.raises(WhereError, match="took more time"):  # and there is no other answer later
        where.kept(BATCH)
    where.close()


def test_each_batch_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records without end are not an error."""
    monkeypatch.setattr(module, "BATCH_SECONDS_MAX", 0.5)
    where = Where("lists.range(30000).all(a, a >= 0)", DECODER.arrow_type, TOPIC)
    (process,) = processes()
    while sum(process.cpu_times()[:2]) < 1.5:
        assert where.kept(BATCH) == [0, 1, 2]
    where.close()


@pytest.mark.parametrize(
    ("sent", "said"),
    [(signal.SIGKILL, r"it ended its process \(-9\)"), (signal.SIGABRT, "needed more memory than it may have")],
)
def test_a_process_that_ends_in_the_middle_is_one_error(sent: int, said: str) -> None:
    """Of the class of an invalid condition, which every user of conditions shows."""
    chooser = Chooser(TOPIC, DECODER, Counts(), condition="value.text != ''")
    assert len(chooser.decoded(BATCH.batch)) == 3
    (process,) = processes()
    process.send_signal(sent)
    with pytest.raises(WhereError, match=said):
        chooser.decoded(BATCH.batch)


def test_a_process_ends_with_its_condition() -> None:
    """Closed, or no longer used, or never valid."""
    where = Where("true", DECODER.arrow_type, TOPIC)
    assert len(processes()) == 1
    del where
    assert processes() == []
    with pytest.raises(WhereError):
        Where("true ||", DECODER.arrow_type, TOPIC)
    assert processes() == []


def test_a_process_ends_with_its_parent() -> None:
    """Also in the middle of a record, and however the parent ends."""
    program = (
        "import pyarrow as pa\n"
        "from highwater.connectors.replay.where import Where\n"
        f"Where({SLOW!r}, pa.struct([('text', pa.string())]), 'x').require_condition()"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT) as parent:
        child = None
        while child is None or child.cpu_times().user < 0.5:
            time.sleep(0.01)
            child = next(iter(psutil.Process(parent.pid).children()), None)
        os.kill(parent.pid, signal.SIGKILL)
    psutil.wait_procs([child], timeout=30)
    assert not child.is_running()


def test_values_that_are_counted_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a batch in its process, and all different ones."""
    counts = Counting("value.text.replace('', value.text) + string(offset)", DECODER.arrow_type, TOPIC)
    monkeypatch.setattr(counting, "VALUES_BYTES_MAX", 2_500_000)
    with pytest.raises(TooManyValuesError, match="coarser"):
        counts.add(BATCH)
    large = Counting("value.text.replace('', value.text)", DECODER.arrow_type, TOPIC)
    many = DECODER.decode(batch([encoded(insight(text="a" * 1_000), own_text()) for _ in range(20)]))
    with pytest.raises(WhereError, match=r"--by, .*: the values of a batch take more than 16 MiB"):
        large.add(many)
