"""Firecracker as the monitor, by the API on its socket. **Untested**: it needs KVM and its binary, and no machine of ours has
both; the calls are written by its API's description, and only their form is tested.

It has no serial port for a link: the guest is called over vsock, and calls end when a machine is saved. So a saved machine
is one that waits for its first call, and one that has been called cannot be saved with what runs in it.
"""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from excise.errors import SandboxLost, SubstrateError
from excise.guest.carrier import SocketCarrier, pair
from excise.handles import finish
from excise.vmm.qemu import Machine
from excise.vmm.tools import find

LABEL = "untested: no machine of ours has both the binary and KVM"
PORT = 1024
MODULES = ("virtio_mmio", "virtio_blk", "vmw_vsock_virtio_transport", "squashfs", "overlay")
_PAUSE_S = 0.01
_LONGEST_ANSWER = 1 << 16


def program() -> str:
    found = shutil.which("firecracker")
    if found is None:
        raise SubstrateError(f"firecracker is missing: put a binary of its releases into PATH ({LABEL})")
    return found


def _spawn(directory: Path, theirs: socket.socket) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [find("setpriv", "util-linux"), "--pdeathsig", "KILL", program(), "--api-sock", str(directory / "api")],
        stdin=subprocess.DEVNULL,
        stdout=theirs.fileno(),  # the machine's console, too
        stderr=theirs.fileno(),
        cwd=directory,  # where a copy finds its own sockets, by the names that were saved
        start_new_session=True,
    )


async def call(path: Path, method: str, resource: str, body: Mapping[str, Any]) -> None:
    """One request of the API on the socket at `path`; a SubstrateError with what it answered unless that was a success."""
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        data = json.dumps(body).encode()
        head = (
            f"{method} {resource} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
        )
        writer.write(f"{head}\r\n\r\n".encode() + data)
        status = (await reader.readline()).decode("ascii", "replace").split(" ", 2)
        length = 0
        while (line := (await reader.readline()).strip()) and len(line) < _LONGEST_ANSWER:
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        said = await reader.readexactly(min(length, _LONGEST_ANSWER)) if length else b""
    except (OSError, asyncio.IncompleteReadError) as error:
        raise SandboxLost(f"Firecracker does not answer any more ({error})") from None
    finally:
        writer.close()
    if len(status) < 2 or not status[1].startswith("2"):
        raise SubstrateError(f"Firecracker refused {method} {resource}: {said.decode('utf-8', 'replace')[:500]}")


class Boot(NamedTuple):
    """What a machine boots."""

    kernel: str
    initrd: str
    arguments: str
    disk: str
    memory_mib: int
    cpus: int


class FirecrackerMachine(Machine):
    """A Firecracker process; its sockets are in a directory that goes with it."""

    directory: Path

    @classmethod
    async def begin(cls) -> "FirecrackerMachine":
        """A process that takes calls; no machine yet."""
        directory = Path(tempfile.mkdtemp(prefix="excise-firecracker-"))
        ours, theirs = pair()
        try:
            process = _spawn(directory, theirs)
        except BaseException:
            ours.close()
            shutil.rmtree(directory, ignore_errors=True)
            raise
        finally:
            theirs.close()
        machine = cls(process, ours, None)
        machine.directory = directory
        try:
            await machine.until(machine.there("api"), "Firecracker did not begin")
        except BaseException:
            await finish(machine.close())
            raise
        return machine

    async def there(self, name: str) -> None:
        """Return when the socket called `name` can be called: it tells nobody when that is."""
        while not os.access(self.directory / name, os.F_OK):  # noqa: ASYNC110 - the event is another process's
            await asyncio.sleep(_PAUSE_S)

    async def put(self, resource: str, body: Mapping[str, Any], method: str = "PUT") -> None:
        await call(self.directory / "api", method, resource, body)

    async def boot(self, source: Boot) -> None:
        await self.put(
            "/boot-source", {"kernel_image_path": source.kernel, "initrd_path": source.initrd, "boot_args": source.arguments}
        )
        drive = {"drive_id": "root", "path_on_host": source.disk, "is_root_device": False, "is_read_only": True}
        await self.put("/drives/root", drive)
        await self.put("/machine-config", {"vcpu_count": source.cpus, "mem_size_mib": source.memory_mib})
        await self.put("/vsock", {"guest_cid": 3, "uds_path": "vsock"})
        await self.put("/actions", {"action_type": "InstanceStart"})

    async def save(self, directory: Path) -> None:
        """Save a machine that has not been called yet; it stands still afterwards."""
        await self.pause()
        paths = {"snapshot_path": str(directory / "device"), "mem_file_path": str(directory / "memory")}
        await self.put("/snapshot/create", {"snapshot_type": "Full", **paths})

    async def load(self, directory: Path) -> None:
        """Become a copy of the machine that was saved there, and run. Its memory is mapped privately."""
        backend = {"backend_type": "File", "backend_path": str(directory / "memory")}
        body = {"snapshot_path": str(directory / "device"), "mem_backend": backend, "resume_vm": True}
        await self.put("/snapshot/load", body)

    async def called(self) -> SocketCarrier:
        """Call the guest, until it listens."""
        await self.there("vsock")
        while True:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.setblocking(False)
            try:
                loop = asyncio.get_running_loop()
                await loop.sock_connect(sock, str(self.directory / "vsock"))
                await loop.sock_sendall(sock, f"CONNECT {PORT}\n".encode())
                if (await loop.sock_recv(sock, 64)).startswith(b"OK "):
                    return SocketCarrier(sock)
            except OSError:
                pass  # nobody listens yet
            except BaseException:
                sock.close()
                raise
            sock.close()
            await asyncio.sleep(_PAUSE_S)

    async def pause(self) -> None:
        await self.put("/vm", {"state": "Paused"}, method="PATCH")

    async def resume(self) -> None:
        await self.put("/vm", {"state": "Resumed"}, method="PATCH")

    async def close(self) -> None:
        await super().close()
        with contextlib.suppress(AttributeError):
            shutil.rmtree(self.directory, ignore_errors=True)
