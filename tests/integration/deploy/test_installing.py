"""An installation that is killed is continued by the next one: `make install` in a copy of its own, and the files from Maven."""

from __future__ import annotations

import hashlib
import http.server
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from highwater.deploy.local.environment import is_whole
from highwater.deploy.local.fetch import MARKER_NAME, REDIS_SERVERS, UNFINISHED_NAME

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]
WAIT_SECONDS_MAX = 60.0
# Packages of the real lock: the needs of the last step, a package of thousands of files, and a later one.
PACKAGES = ("numpy", "setuptools", "six")
FETCH = """
import sys
from pathlib import Path
from highwater.deploy.local import fetch
fetch.install(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def _until(fact: Callable[[], bool], process: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not fact():
        assert process is None or process.poll() is None, f"it ended with status {process.returncode}"
        assert time.monotonic() < deadline
        time.sleep(0.002)


def _kill(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    with process:  # its pipe is closed too
        process.wait(10)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what `make install` reads, with few packages and no files from Maven."""
    folder = tmp_path / "checkout"
    for name in ("Makefile", "pyproject.toml", "README.md"):
        folder.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder)
    for name in ("highwater", "deploy", "api", "connectors", "schemas", "streams"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "deploy" / "local" / "jars.lock").write_text("# none\n")
    lock = (ROOT / "requirements.lock").read_text()
    found = [re.search(rf"^{name}==.*?(?=^\S|\Z)", lock, re.DOTALL | re.MULTILINE) for name in PACKAGES]
    (folder / "requirements.lock").write_text("".join(one[0] for one in found if one is not None))
    # The files that `fetch` leaves for this empty lock: its downloads are the other test.
    share = folder / ".venv" / "share" / "highwater"
    share.mkdir(parents=True)
    (share / MARKER_NAME).write_text(hashlib.sha256(b"# none\n").hexdigest())
    return folder


def _make(checkout: Path) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    base = Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")
    return subprocess.Popen(
        ["make", "install", f"PYTHON={base}"],
        cwd=checkout,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def test_make_install_goes_on_after_a_kill(checkout: Path) -> None:
    """Killed while the environment is made and while a package is unpacked, it ends well the third time, and all is whole."""
    environment = checkout / ".venv"

    def packages(pattern: str) -> list[Path]:
        return list(environment.glob(f"lib/python3*/site-packages/{pattern}"))

    first = _make(checkout)
    _until(lambda: any(packages("pip/_internal/*")), first)
    _kill(first)
    assert not any(map(is_whole, packages("pip-*.dist-info")))
    second = _make(checkout)
    _until(lambda: any(packages("numpy/*")), second)
    _kill(second)
    assert not any(map(is_whole, packages("numpy-*.dist-info")))
    half = environment.glob("lib/python3*/site-packages/numpy")
    begun = next(half).with_name("six-0.dist-info")
    begun.mkdir()  # as pip leaves one whose files it had begun to write: it ends in a traceback over it
    third = _make(checkout)
    output, _ = third.communicate(timeout=WAIT_SECONDS_MAX * 2)
    assert third.returncode == 0, output.decode()
    assert b"Traceback" not in output
    assert all(map(is_whole, packages("*.dist-info")))
    answer = subprocess.run(
        [environment / "bin" / "python", "-c", "import numpy, six; numpy.fft.fft([1.0]); import highwater"],
        capture_output=True,
        check=False,
        cwd=environment,
    )
    assert answer.returncode == 0, answer.stderr.decode()
    assert (environment / "bin" / "highwater").is_file()


class _Server(http.server.ThreadingHTTPServer):
    """Its end waits for the answers in progress."""

    daemon_threads = False


class _Maven:
    """A repository on the loopback; of `slow` it sends half and then nothing."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.asked: Counter[str] = Counter()
        self.slow: str | None = None
        maven = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = files.get(self.path)
                if body is None:
                    self.send_error(404)
                    return
                maven.asked[self.path] += 1
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.path == maven.slow:
                    self.wfile.write(body[: len(body) // 2])
                    self.wfile.flush()
                    maven.released.wait(WAIT_SECONDS_MAX)
                    return
                self.wfile.write(body)

            def log_message(self, *_arguments: Any) -> None:
                """Log nothing."""

        self.released = threading.Event()
        self.server = _Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"


def _archive(name: str, content: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def _jar(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as jar:
        for name, content in members.items():
            jar.writestr(name, content)
    return stream.getvalue()


FILES = {
    "/org/one/one/1/one-1.jar": ("kafka org.one:one:1:jar", os.urandom(200_000)),
    "/org/two/two/1/two-1-all.tar.gz": ("registry org.two:two:1:tar.gz:all", _archive("app.jar", b"the registry")),
    "/org/three/three/1/three-1.jar": (
        "redis org.three:three:1:jar",
        _jar(dict.fromkeys(REDIS_SERVERS.values(), b"#!/bin/sh\necho Redis\n")),
    ),
    "/org/four/four/1/four-1.jar": (
        "models org.four:four:1:jar",
        _jar({"small.onnx": b"numbers", "small-tokenizer.json": b"{}", "META-INF/pom.xml": b"", "x/Model.class": b""}),
    ),
}


@pytest.fixture
def maven() -> Iterator[_Maven]:
    """That repository."""
    found = _Maven({path: body for path, (_, body) in FILES.items()})
    yield found
    found.released.set()
    found.server.shutdown()
    found.server.server_close()


def test_files_that_arrived_before_a_kill_are_not_downloaded_again(maven: _Maven, tmp_path: Path) -> None:
    """Killed with one half-downloaded file, the next run downloads that file alone; the installed files are the locked ones."""
    home, share, lock = tmp_path / "home", tmp_path / "share", tmp_path / "jars.lock"
    (home / ".config").mkdir(parents=True)
    (home / ".config" / "jgo.conf").write_text(f"[repositories]\nhere = {maven.url}\n")
    lines = [f"{coordinate} sha256:{hashlib.sha256(body).hexdigest()}\n" for coordinate, body in FILES.values()]
    lock.write_text("".join(lines))
    root, scratch = share / "highwater", share / UNFINISHED_NAME

    def begin() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", FETCH, str(root), str(lock)],
            env={**os.environ, "HOME": str(home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    maven.slow = "/org/one/one/1/one-1.jar"
    first = begin()
    _until(lambda: len(maven.asked) == len(FILES) and len(list(scratch.rglob("*-1*.*"))) >= len(FILES), first)
    time.sleep(0.2)
    _kill(first)
    assert not root.exists()
    maven.slow = None
    maven.released.set()
    second = begin()
    output, _ = second.communicate(timeout=WAIT_SECONDS_MAX)
    assert second.returncode == 0, output.decode()
    assert maven.asked == {**dict.fromkeys(FILES, 1), "/org/one/one/1/one-1.jar": 2}
    assert (root / "kafka" / "libs" / "one-1.jar").read_bytes() == FILES["/org/one/one/1/one-1.jar"][1]
    assert (root / "registry" / "app.jar").read_bytes() == b"the registry"
    models = {path.name: path.read_bytes() for path in (root / "models").iterdir()}
    assert models == {"small.onnx": b"numbers", "small-tokenizer.json": b"{}"}
    alone = FETCH.replace("fetch.install(", "fetch.install_models(")
    environment = {**os.environ, "HOME": str(home)}
    subprocess.run([sys.executable, "-c", alone, tmp_path / "image", lock], env=environment, check=True)
    assert sorted(path.name for path in (tmp_path / "image").rglob("*.*")) == ["small-tokenizer.json", "small.onnx"]
    assert subprocess.run([root / "redis" / "redis-server"], capture_output=True, check=True).stdout == b"Redis\n"
    assert not scratch.exists()
