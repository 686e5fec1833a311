# ruff: noqa: E402 - the tests' own cluster and image are used, and lie beside this directory

"""The row of `namespace` inside a pod: measured there, by a pod of the manifest in docs/kubernetes, and brought here.

    python bench/namespace_in_pod.py --out results/in-pod [--manifest FILE] [-- measure namespace --plan smoke --blocks 30]

As root beside a cluster of `make substrates`: an image with Excise is put on its node, and removed afterwards. What follows
`--` is what Excise is asked inside; it is told where to put its results. Then `excise report results/in-pod` shows them, and a
run of the same words on the node itself is what they stand beside: only ratios within a run are compared.
"""

import argparse
import asyncio
import io
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from a_cluster import admin, forget, own_namespace
from cluster.images import _ctr  # pyright: ignore[reportPrivateUsage]
from cluster.places import places
from excise.meter.results import refuse_used
from excise.substrates.kubernetes.api import Api
from excise.substrates.kubernetes.events import is_started
from excise.substrates.kubernetes.watch import PodWatch
from excise_image import put_on_node

MANIFEST = ROOT / "docs" / "kubernetes" / "namespace-in-pods-older.yaml"
EXCISE = ("python3", "-c", "import sys; from excise.cli import main; sys.exit(main())")
WORDS = ("measure", "namespace", "--plan", "smoke", "--blocks", "30")
INSIDE = "/excise/results"
NAME, CONTAINER = "excise-worker", "worker"
STARTS_S = 120.0
STDOUT = 1


def pod_of(manifest: Path, image: str) -> dict[str, Any]:
    """One pod as the deployment would make it, of this image, which no registry has."""
    spec: dict[str, Any] = yaml.safe_load(manifest.read_text())["spec"]["template"]["spec"]
    spec |= {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    spec["containers"][0] |= {"image": image, "imagePullPolicy": "Never"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME}, "spec": spec}


async def started(api: Api) -> None:
    watch = PodWatch(api, "", fields=f"metadata.name={NAME}", hears=False)
    followed = watch.follow(NAME)
    try:
        async with asyncio.timeout(STARTS_S):
            await watch.start()
            await followed.until(lambda seen: (seen.pod is not None and is_started(seen.pod)) or None)
    finally:
        await watch.close()


async def said(api: Api, argv: Sequence[str], *, aloud: bool) -> bytes:
    """What a program in the pod writes to its stdout; `aloud`: all of it, to ours as it comes."""
    stream = await api.exec(NAME, CONTAINER, tuple(argv), stdin=False)
    found = b""
    try:
        while (frame := await stream.frame()) is not None:
            channel, data = frame
            if aloud:
                sys.stdout.buffer.write(data)
                sys.stdout.flush()
            elif channel == STDOUT:
                found += data
    finally:
        stream.close()
    if stream.ending is None or stream.ending.exit_code != 0:
        raise SystemExit(f"{' '.join(argv[-3:])} failed in the pod: {stream.ending}")
    return found


async def measured(namespace: str, image: str, given: argparse.Namespace) -> None:
    async with admin(namespace) as api:
        await api.create("pods", pod_of(given.manifest, image))
        try:
            await started(api)
            await said(api, (*EXCISE, *given.words, "--out", INSIDE), aloud=True)
            packed = await said(api, ("tar", "-C", INSIDE, "-cf", "-", "."), aloud=False)
        finally:
            await api.delete("pods", NAME)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        given.out.mkdir(parents=True, exist_ok=True)
        for member in archive:
            content = archive.extractfile(member)  # none of a directory
            if content is not None:
                (given.out / Path(member.name).name).write_bytes(content.read())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--manifest", type=Path, default=MANIFEST)
    parser.add_argument("words", nargs="*", default=WORDS)
    given = parser.parse_args()
    refuse_used(given.out)

    def ctr(*words: str) -> str:
        return _ctr(places(), *words)

    image = put_on_node(ctr)
    try:
        with own_namespace() as namespace:
            asyncio.run(measured(namespace, image, given))
    finally:
        forget(image)


if __name__ == "__main__":
    main()
