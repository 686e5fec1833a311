"""native/test/file_tool.c from Python."""

import os
import subprocess
from pathlib import Path

NOBODY = 65534


class FileTool:
    """One file action in a process of its own, as the guest starts it."""

    def __init__(self, program: int) -> None:
        self._program = program

    def start(
        self, operation: str, path: str | bytes, *, cwd: Path, user: int | None = None, **more: object
    ) -> "subprocess.Popen[bytes]":
        words = [f"{key}={int(value) if isinstance(value, bool) else value}".encode() for key, value in more.items()]
        return subprocess.Popen(
            [f"/proc/self/fd/{self._program}".encode(), operation.encode(), os.fsencode(path), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(self._program,),
            cwd=cwd,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            env={},
            umask=0o077,  # whoever starts the guest may have any
        )

    def __call__(
        self, operation: str, path: str | bytes, data: bytes = b"", *, cwd: Path, user: int | None = None, **more: object
    ) -> tuple[int, bytes]:
        """Its errno and what it printed."""
        with self.start(operation, path, cwd=cwd, user=user, **more) as process:
            try:
                stdout, stderr = process.communicate(data, timeout=60)
            finally:
                process.kill()
        assert stderr == b"", stderr.decode()  # a sanitizer's
        assert process.returncode >= 0
        return process.returncode, stdout
