"""Becomes a child that cannot outlive its parent, then the requested program.

Run as a script between the supervisor and each program it starts. Invariant: the death signal is set after the user was
changed (changing it clears the signal), and the parent is checked after that (it may have died before). A separate
program rather than a `preexec_fn`: that one runs Python between fork and exec in a process with threads.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import sys
from typing import NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_SET_SECUREBITS = 28
SECBIT_NO_SETUID_FIXUP = 1 << 2
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
# Either lets a process pass through folders that its user may not enter. The first only reads, so it is preferred; root
# in a container commonly has only the second.
CAP_DAC_READ_SEARCH = 2
CAP_DAC_OVERRIDE = 1
LINUX_CAPABILITY_VERSION_3 = 0x20080522
UMASK = 0o077  # only its user can read what a child writes; `private.UMASK`, which a standalone script does not import
EXIT_CANNOT_RUN = 126  # a shell's status for a program that cannot be executed


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapabilityData(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def _prctl(libc: ctypes.CDLL, option: int, *values: int) -> None:
    padded = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    if libc.prctl(ctypes.c_int(option), *padded) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def _reaching_capability() -> int:
    with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123 - pathlib would double the start time
        lines = dict(line.split(":", 1) for line in status)
    held = int(lines["CapPrm"], 16) & int(lines["CapBnd"], 16)
    for capability in (CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE):
        if held >> capability & 1:
            return capability
    raise PermissionError("root on this machine cannot grant the right to pass through private folders")


def _become(libc: ctypes.CDLL, uid: int, gid: int, *, is_reaching: bool) -> None:
    capability = _reaching_capability() if is_reaching else None
    if capability is not None:
        _prctl(libc, PR_SET_KEEPCAPS, 1)
        # Without this bit access(2), by which PostgreSQL finds its own programs, ignores capabilities. If root may not
        # set it, programs in private folders are not found; everything else works.
        with contextlib.suppress(PermissionError):
            _prctl(libc, PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if capability is None:
        return
    header = _CapabilityHeader(LINUX_CAPABILITY_VERSION_3, 0)
    mask = 1 << capability
    data = (_CapabilityData * 2)(_CapabilityData(mask, mask, mask), _CapabilityData(0, 0, 0))
    if libc.capset(ctypes.byref(header), data) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"capset: {os.strerror(number)}")
    _prctl(libc, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability)  # ambient: kept over exec by an ordinary user


def _run(options: argparse.Namespace) -> NoReturn:
    libc = ctypes.CDLL(None, use_errno=True)
    if options.uid is not None:
        _become(libc, options.uid, options.gid, is_reaching=options.reach)
    _prctl(libc, PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != options.parent_pid:
        sys.exit(EXIT_CANNOT_RUN)  # the parent died before the signal was set: nobody is left to inform
    os.umask(UMASK)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # `nohup … &` leaves them ignored, and exec would keep that
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.execvp(options.argv[0], options.argv)  # noqa: S606 - to become that program is the point


def main() -> NoReturn:
    """Read the options and become the program; a failure is one line on stderr."""
    parser = argparse.ArgumentParser(prog="child")
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--uid", type=int)
    parser.add_argument("--gid", type=int)
    parser.add_argument("--reach", action="store_true", help="keep the right to pass through private folders")
    parser.add_argument("argv", nargs="+")
    options = parser.parse_args()
    try:
        _run(options)
    except OSError as error:
        sys.stderr.write(f"{options.argv[0]}: {error}\n")
        sys.exit(EXIT_CANNOT_RUN)


if __name__ == "__main__":
    main()
