"""A Redis Cluster of three primaries with a replica each, of the embedded server, whose nodes a test may kill."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Self

from redis import Redis
from redis.exceptions import RedisError

from highwater.deploy.local.ports import PortBook
from highwater.deploy.local.process import Command, ManagedProcess
from highwater.deploy.local.redis import chosen_server

NODES, PRIMARIES, SLOTS = 6, 3, 16_384
# A node that is silent for this long is replaced; not less than readers trust a value (`resource_cache.TRUSTED_MS`).
NODE_TIMEOUT_MS = 2_000
_PORT_FIRST = 7_300
# A node talks to the others here, counted from its port.
_BUS = 10_000
PASSWORD = "of-the-cluster"
SECONDS_MAX = 60.0


class SixNodes:
    """The nodes, by number; the first three begin as primaries."""

    def __init__(self, folder: Path) -> None:
        self._book = PortBook(folder)
        self.ports = [self._book.take(f"node-{number}", _PORT_FIRST + number) for number in range(NODES)]
        self._folders = [folder / f"node-{number}" for number in range(NODES)]
        self._processes = [ManagedProcess(f"node-{number}", folder / f"node-{number}.log") for number in range(NODES)]

    @property
    def url(self) -> str:
        """Its address: two of the nodes are enough to find the others."""
        return f"redis+cluster://:{PASSWORD}@127.0.0.1:{self.ports[0]},127.0.0.1:{self.ports[4]}"

    def __enter__(self) -> Self:
        """Start the nodes and join them; returns once all slots are served and every primary has its replica."""
        for number in range(NODES):
            self.start(number)
        for number in range(NODES):
            until(lambda n=number: self.node(n).ping(), f"node {number} answers")
        for number in range(PRIMARIES):
            slots = range(SLOTS * number // PRIMARIES, SLOTS * (number + 1) // PRIMARIES)
            self.node(number).execute_command("CLUSTER ADDSLOTS", *slots)
            self.node(number).execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        for number in range(1, NODES):
            self.node(0).execute_command("CLUSTER MEET", "127.0.0.1", self.ports[number])
        until(lambda: all(len(self.known(number)) == NODES for number in range(NODES)), "all know all")
        for number in range(PRIMARIES):
            primary = str(self.node(number).execute_command("CLUSTER MYID"))
            self.node(PRIMARIES + number).execute_command("CLUSTER REPLICATE", primary)
        until(lambda: all(self.is_whole(number) for number in range(NODES)), "the cluster is whole")
        until(
            lambda: all(
                self.node(number).info("replication").get("master_link_status") == "up"
                for number in range(PRIMARIES, NODES)
            ),
            "the replicas follow",
        )
        return self

    def __exit__(self, *_: object) -> None:
        """End all nodes."""
        for process in self._processes:
            process.kill()
        self._book.release()

    def start(self, number: int) -> None:
        """Start a node on its data."""
        self._folders[number].mkdir(exist_ok=True)
        options = {
            "port": self.ports[number], "bind": "127.0.0.1", "dir": self._folders[number], "save": "", "appendonly": "yes",
            "requirepass": PASSWORD, "masterauth": PASSWORD, "cluster-enabled": "yes", "cluster-config-file": "nodes.conf",
            "cluster-node-timeout": NODE_TIMEOUT_MS, "repl-diskless-sync-delay": 0,
        }  # fmt: skip
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self._processes[number].start(Command((str(chosen_server().program), *words)))

    def kill(self, number: int) -> None:
        """End a node as a crash would."""
        self._processes[number].kill()

    def node(self, number: int) -> Redis:
        """A client of one node."""
        return Redis(port=self.ports[number], password=PASSWORD, decode_responses=True, socket_timeout=5)

    def known(self, number: int) -> list[str]:
        """The nodes that one node knows and has shaken hands with."""
        nodes = self.node(number).execute_command("CLUSTER NODES")
        return [name for name, said in nodes.items() if "handshake" not in said["flags"]]

    def is_whole(self, number: int) -> bool:
        """Whether a node says that all slots are served."""
        return self.node(number).execute_command("CLUSTER INFO")["cluster_state"] == "ok"

    def primary_of(self, key: str) -> int:
        """The number of the node that has a key's slot."""
        for number in range(NODES):
            try:
                slot = self.node(number).execute_command("CLUSTER KEYSLOT", key)
                said = self.node(number).execute_command("CLUSTER NODES")
            except RedisError:
                continue
            for name, about in said.items():
                holds = any(int(part[0]) <= slot <= int(part[-1]) for part in about["slots"])
                if holds and "master" in about["flags"] and "fail" not in about["flags"]:
                    return self.ports.index(int(name.rpartition(":")[2]))
        raise AssertionError(f"nobody has the slot of {key}")


def until(is_true, what: str) -> None:
    """Poll until a fact holds; a node that does not answer yet is not an error."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            if is_true():
                return
        except RedisError:
            pass
        assert time.monotonic() < deadline, f"not within {SECONDS_MAX} s: {what}"
        time.sleep(0.05)
