"""The images the node holds from the start, all made here: the pods' pause, Excise's base, and the guest."""

import hashlib
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster import archive
from cluster.errors import ClusterError
from cluster.places import Places, cache
from cluster.settings import PAUSE_IMAGE
from excise.errors import SpecError
from excise.guest.programs import guest_image, program
from excise.storage import debian

_PAUSE_SOURCE = Path(__file__).parent / "pause.c"
_COMPILE = ("gcc", "-static", "-Os", "-s")


@dataclass(frozen=True)
class Held:
    """An image of one layer: a root file system's tar, or one program and where it lies."""

    names: list[str]
    tar: Path | None = None
    program: tuple[Path, str] | None = None
    config: dict[str, Any] = field(default_factory=dict)


def wanted() -> list[Held]:
    """All that must be there. excise/base is among them where it was built; tests name it by its tag, people by its name."""
    guest = program("excise-guest")
    found = [
        Held([PAUSE_IMAGE], program=(_pause(), "/pause"), config={"Entrypoint": ["/pause"]}),
        Held([guest_image()], program=(guest, "/excise-guest"), config={"Entrypoint": ["/excise-guest"]}),
    ]
    try:
        base = debian.built()
    except SpecError:
        print(
            "excise/base is not built: run `excise image build`, then `make substrates` again, and pods can use it", flush=True
        )
        return found
    tag = base.digest.removeprefix("sha256:")[:12]
    env = [f"{name}={value}" for name, value in base.env.items()]
    return [*found, Held(["excise/base:latest", f"excise/base:{tag}"], tar=base.tar, config={"Env": env, "Cmd": ["/bin/bash"]})]


def ensure(places: Places) -> list[str]:
    """Import what the node lacks; the names of what was imported."""
    held = there(places)
    imported: list[str] = []
    for image in wanted():
        if not all(any(name.endswith(f"/{wanted}") for name in held) for wanted in image.names):
            _import(image, places)
            imported += image.names
    return imported


def there(places: Places) -> list[str]:
    """The names of all images the node holds. The node's own status lists them too, some half a minute later."""
    return _ctr(places, "images", "list", "--quiet").split()


def _import(image: Held, places: Places) -> None:
    with tempfile.TemporaryDirectory(dir=places.data, prefix="image-") as directory:
        layer = image.tar
        if image.program is not None:
            layer = Path(directory) / "layer.tar"
            layer.write_bytes(archive.layer_of(*image.program))
        assert layer is not None
        packed = Path(directory) / "image.tar"
        with packed.open("wb") as file:
            archive.write(file, layer, image.names, platform.machine(), image.config)
        _ctr(places, "images", "import", str(packed))


def _ctr(places: Places, *words: str) -> str:
    """Of the namespace in which the kubelet's images and containers are."""
    command = ["ctr", "--address", str(places.containerd_socket), "--namespace", "k8s.io", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"containerd refused `ctr {' '.join(words)}`: {done.stderr.strip()}")
    return done.stdout


def _pause() -> Path:
    """Built once from the source beside this file, and kept by what that says."""
    built = cache() / f"pause-{hashlib.sha256(_PAUSE_SOURCE.read_bytes()).hexdigest()[:12]}-{platform.machine()}"
    if not built.exists():
        if shutil.which("gcc") is None:
            raise ClusterError("no C compiler was found: run 'apt-get install gcc libc6-dev' and try again")
        built.parent.mkdir(parents=True, exist_ok=True)
        new = built.with_suffix(".new")
        subprocess.run([*_COMPILE, "-o", str(new), str(_PAUSE_SOURCE)], check=True)
        new.rename(built)
    return built
