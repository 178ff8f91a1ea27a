"""Child processes that begin with everything imported, so that starting one costs nothing."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path


def start(job: Callable[[], int], log: Path, environment: Mapping[str, str] | None = None) -> int:
    """Fork a process that does the job, its output going to a file; its id. Nothing may have been computed before."""
    log.touch()  # it is read even if the process is ended before its first line
    pid = os.fork()
    if pid:
        with suppress(OSError):  # whoever of the two is first: a stop of the group must find it
            os.setpgid(pid, pid)
        return pid
    code = 1
    try:
        os.setpgid(0, 0)
        os.environ.update(environment or {})
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        code = job()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def end_of(pid: int) -> int:
    """Wait for a child; its exit code, or the negative signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def running(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
