"""The disk usage of the worker's tables if the same keys are written repeatedly."""

from __future__ import annotations

import os
from pathlib import Path

import faust
from faust.stores.rocksdb import RocksDBOptions

from highwater.streams import app

_KEYS, _VALUE_BYTES, _ROUNDS = 100, 5_000, 30


def test_a_table_is_as_large_as_its_newest_values(tmp_path: Path):
    """Half a MiB is written 30 times; a few times that is kept. RocksDB's own sizes keep all 15 MB."""
    table = app._table(faust.App("sizes", datadir=tmp_path), "sizes", 1)
    options = RocksDBOptions(**table.options, use_rocksdict=True)
    db = options.open(tmp_path / "0.db")
    for _ in range(_ROUNDS):
        for key in range(_KEYS):
            db.put(str(key).encode(), os.urandom(_VALUE_BYTES))
    kept = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert _KEYS * _VALUE_BYTES <= kept < 16 * _KEYS * _VALUE_BYTES
