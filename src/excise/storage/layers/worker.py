"""The process that works on trees: it unpacks, looks through and removes them, beside the user's and with ids of its own.

It is asked one thing at a time by lines on its standard input and lives as long as who started it.
"""

import os
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from excise.errors import ExciseError, SpecError
from excise.storage import userspace
from excise.storage.layers import content, view
from excise.storage.layers.jobs import Answer, Done, Failed, Job, LayerRecord, Progress, Remove, Unpack, Verify, View
from excise.storage.layers.tarfields import TarError
from excise.storage.layers.tarstream import Reader, members
from excise.storage.layers.tree import Tree
from excise.storage.layers.view import DISK_ERRORS, sync
from excise.storage.oci.registry import BlobSource, wrong_digest
from excise.storage.oci.streams import Stream

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_REPORT_BYTES = 4 << 20

Say = Callable[[Answer], None]


def serve(parent: int) -> None:
    """Do what is asked until nobody can ask any more."""
    keeps_owners = userspace.enter()
    userspace.die_with(parent)
    os.umask(0)
    encoder, decoder = msgspec.json.Encoder(), msgspec.json.Decoder(Job)

    def say(answer: Answer) -> None:
        data = encoder.encode(answer) + b"\n"
        while data:
            data = data[os.write(1, data) :]

    for line in sys.stdin.buffer:
        say(_answer(decoder.decode(line), say, keeps_owners=keeps_owners))


def _answer(job: Job, say: Say, *, keeps_owners: bool) -> Answer:
    try:
        match job:
            case Unpack():
                return Done(unpack(job, say, keeps_owners=keeps_owners))
            case View():
                view.build(job)
                return Done()
            case Verify():
                return Done(verify(Path(job.layer)) or "")
            case Remove():
                view.remove(Path(job.path))
                return Done()
    except ExciseError as error:
        return Failed(type(error).__name__, str(error))
    except OSError as error:
        return Failed("OSError", f"{error.strerror or error} ({error.filename or 'no file'})", error.errno or 0)


def unpack(job: Unpack, say: Say, *, keeps_owners: bool) -> str:
    """Fill `making`, and return what layer.json says. Only what has the digests asked for is ever called whole."""
    making = Path(job.making)
    reporter = _Reporter(say)
    stream = Stream(_chunks(job, say), job.limits, reporter)
    try:
        record = _fill(job, making, stream, keeps_owners=keeps_owners)
    finally:
        stream.close()
    reporter.flush()
    text = msgspec.json.encode(record)
    (making / "layer.json").write_bytes(text)
    sync(making)
    return text.decode()


def _chunks(job: Unpack, say: Say) -> Iterator[bytes]:
    if isinstance(job.source, BlobSource):
        return job.source.chunks(lambda text: say(Progress(text=text)))
    return job.source.chunks()


class _Reporter:
    """Bytes that came, said now and then."""

    def __init__(self, say: Say) -> None:
        self._say, self._unsaid = say, 0

    def __call__(self, count: int) -> None:
        self._unsaid += count
        if self._unsaid >= _REPORT_BYTES:
            self.flush()

    def flush(self) -> None:
        self._say(Progress(self._unsaid))
        self._unsaid = 0


def _fill(job: Unpack, making: Path, stream: Stream, *, keeps_owners: bool) -> LayerRecord:
    (making / "tree").mkdir()
    root = os.open(making / "tree", _DIRECTORY)
    tree = Tree(root, keep_owners=keeps_owners)
    try:
        _extract(job, stream, tree)
        kept, digest = content.recorded(content.entries(root, tree.digests))
    finally:
        tree.close()
        os.close(root)
    (making / "entries").write_bytes(kept)
    return LayerRecord(
        digest=stream.diff_id,
        size_bytes=tree.size_bytes,
        content=digest,
        owners="kept" if keeps_owners else "flattened",
        links=tuple(tree.missing_links),
    )


def _extract(job: Unpack, stream: Stream, tree: Tree) -> None:
    current = ""
    try:
        reader = Reader(iter(stream))
        for count, (member, pieces) in enumerate(members(reader, job.limits.most_bytes)):
            current = f" at member {member.name[:200]!r}"
            if count == job.limits.most_entries:
                raise TarError(f"it has more than {job.limits.most_entries} members")  # noqa: TRY301 - named below
            tree.add(member, pieces)
        current = ""
        reader.drain()
        if job.digest not in (None, stream.digest) or job.diff_id not in (None, stream.diff_id):
            wanted = job.digest if job.digest not in (None, stream.digest) else job.diff_id
            raise wrong_digest(job.named, str(wanted))
        tree.finish()
        for name, mode in job.complete:
            tree.complete(name.strip("/"), mode)
    except (TarError, zlib.error, EOFError, ValueError, OverflowError) as error:
        raise SpecError(f"{job.named} cannot be unpacked{current}: {' '.join(str(error).split())}") from None
    except SpecError as error:
        raise SpecError(f"{job.named} cannot be unpacked{current}: {error}") from None
    except OSError as error:
        if error.errno in DISK_ERRORS:
            raise
        raise SpecError(f"{job.named} cannot be unpacked{current}: {error.strerror or error}") from None


def verify(layer: Path) -> str | None:
    """What of the layer is not as it was recorded."""
    try:
        record = msgspec.json.decode((layer / "layer.json").read_bytes(), type=LayerRecord)
        kept = (layer / "entries").read_bytes()
    except (FileNotFoundError, msgspec.DecodeError):
        return "its record is damaged"
    root = os.open(layer / "tree", _DIRECTORY)
    try:
        return content.difference(kept, record.content, content.entries(root))
    finally:
        os.close(root)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, BrokenPipeError):
        serve(int(sys.argv[1]))
