"""Creates or repairs the virtual environment of `make install`: `python deploy/local/environment.py FOLDER`.

Invariant: afterwards FOLDER has a Python with a working pip, and every package in it is complete, wherever an earlier
installation was interrupted. It runs before anything is installed, under the Python that the environment uses.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

# The folders of the environment itself. `share` is kept: the files in it are checked by their hashes (`fetch.py`).
OWN = ("bin", "include", "lib", "lib64", "pyvenv.cfg")
INTERRUPTED = 130


def has_pip(folder: Path) -> bool:
    """Return whether the environment has a Python that starts and a completely installed pip."""
    if not any(map(is_whole, _packages(folder, "pip-*.dist-info"))):
        return False
    try:
        answer = subprocess.run(  # noqa: S603 - the interpreter of the environment
            [folder / "bin" / "python", "-m", "pip", "--version"], capture_output=True, check=False
        )
    except OSError:  # its Python no longer exists
        return False
    return answer.returncode == 0


def is_whole(info: Path) -> bool:
    """Return whether the package of a dist-info folder was installed completely.

    The last step of an installer replaces the wheel's RECORD by one that also lists added files, such as INSTALLER.
    """
    try:
        return "/INSTALLER," in (info / "RECORD").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False


def remove_unfinished(folder: Path) -> list[str]:
    """Remove what pip left incomplete, so that it is installed again; return the names of what was removed.

    pip treats an incomplete package as installed if its METADATA exists, and otherwise fails with a traceback. A name
    that begins with `~` was being replaced.
    """
    unfinished = [info for info in _packages(folder, "*.dist-info") if not is_whole(info)]
    unfinished += _packages(folder, "~*")
    for path in unfinished:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    return sorted(path.name for path in unfinished)


def make(folder: Path) -> None:
    """Create the environment, replacing the remains of an interrupted attempt."""
    for name in OWN:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    venv.create(folder, with_pip=True, symlinks=True)


def _packages(folder: Path, pattern: str) -> list[Path]:
    return [path for site in folder.glob("lib/python3*/site-packages") for path in site.glob(pattern)]


def main(arguments: list[str]) -> int:
    """Create or repair the environment; return the exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python deploy/local/environment.py FOLDER\n")
        return 2
    folder = Path(arguments[0])
    try:
        if not has_pip(folder):
            make(folder)
        elif removed := remove_unfinished(folder):
            sys.stdout.write(f"an earlier installation was interrupted; continuing with {', '.join(removed)}\n")
    except subprocess.CalledProcessError as error:  # of ensurepip
        sys.stderr.write(f"{sys.executable} has no venv with pip (Debian has it in python3-venv): {error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"the virtual environment cannot be made: {error}\n")
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
