"""The reports of jobs in the form that watchers receive: entries of the stream in Redis, gaps, and the state of a job.

Invariant: pure. A frame depends only on its entry or on the state of the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from highwater.connectors.jobs.read_model import JobRead
from highwater.connectors.jobs.streams import Entry
from highwater.schemas.envelope import iso_from_ms
from highwater.streams.jobs.progress import ENDS, ERROR

GAP, SNAPSHOT = "gap", "snapshot"
_NUMBERS = ("slide_number", "progress_pct")


class Frame(NamedTuple):
    """A report in the form of each kind of stream. `seq` is the place after it.

    `ends`: nothing follows; `may_go_on`: unless the job was restarted since, which only PostgreSQL knows for certain.
    """

    seq: int
    sse: bytes
    text: str
    ends: bool
    may_go_on: bool = False


def entry_frame(entry: Entry) -> Frame:
    """Return the frame of an entry; its id is that of the stream."""
    fields = entry.fields
    document: dict[str, Any] = {"id": f"{entry.seq}-0", "event_type": fields.get("event_type", "")}
    for name, value in fields.items():
        if name == "timestamp":
            document[name] = iso_from_ms(int(value))
        elif name != "event_type":
            document[name] = int(value) if name in _NUMBERS else value
    frame = _frame(entry.seq, document["event_type"], document, ends=document["event_type"] in ENDS)
    return frame._replace(may_go_on=document["event_type"] == ERROR)


def gap_frames(after: int, upto: int, job: JobRead) -> list[Frame]:
    """Return that the entries between two numbers are missing, and the state of the job."""
    gap = {"id": f"{upto}-0", "event_type": GAP, "after": f"{after}-0", "missing": upto - after}
    told = {"id": f"{upto}-0", "event_type": SNAPSHOT, **snapshot_document(job)}
    return [_frame(upto, GAP, gap, ends=False), _frame(upto, SNAPSHOT, told, ends=job.has_ended and upto >= job.seq)]


def snapshot_document(job: JobRead) -> dict[str, Any]:
    """Return the state of a job for watchers; `seq` is the last event included."""
    return {
        "job_id": job.job_id,
        "status": job.status,
        "progress_pct": job.progress_pct,
        "steps_done": job.steps_done,
        "steps_total": job.steps_total,
        "error": job.error,
        "seq": job.seq,
        "timestamp": iso_from_ms(job.updated_ms),
    }


def _frame(seq: int, event_type: str, document: Mapping[str, Any], *, ends: bool) -> Frame:
    data = orjson.dumps(document)
    return Frame(seq, b"id: %d-0\nevent: %s\ndata: %s\n\n" % (seq, event_type.encode(), data), data.decode(), ends)
