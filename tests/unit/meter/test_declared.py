"""A run records how far what it measured keeps sandboxes apart: advice is given by it, later and elsewhere."""

from pathlib import Path

import excise
from excise.economics.measured import read
from excise.meter.provenance import provenance
from excise.meter.records import Declared
from excise.substrate import Capabilities


def test_what_isolation_is_judged_by_is_kept(tmp_path: Path) -> None:
    capabilities = Capabilities(
        kernel="own",
        isolates=frozenset({"network", "files"}),
        network=frozenset({"none"}),
        snapshot="processes",
        versions={"qemu": "7.2", "accel": "tcg"},
    )
    found = provenance(tmp_path, {"vm": capabilities})
    assert found.declared == {
        "vm": Declared(kernel="own", isolates=("files", "network"), network=("none",), snapshot="processes")
    }
    assert found.versions == {"vm": {"qemu": "7.2", "accel": "tcg"}}


def test_a_real_run_has_it_on_the_disk(tmp_path: Path) -> None:
    excise.measure("local", blocks=1, out=tmp_path / "run")
    assert read([tmp_path / "run"]).declared["local"] == Declared(kernel="shared")
