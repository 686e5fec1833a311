import os

from excise.meter.host import counters
from excise.meter.provenance import filesystem

STAT = "cpu  1000 100 300 9000 700 20 30 40 500 60\ncpu0 1 2 3 4 5 6 7 8 9 10\n"
PRESSURE = "some avg10=1.50 avg60=0.70 avg300=0.20 total=123456\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=99\n"


def read(tmp_path, pressure):
    (tmp_path / "stat").write_text(STAT)
    if pressure is not None:
        (tmp_path / "cpu").write_text(pressure)
    return counters(tmp_path / "stat", tmp_path / "cpu")


def test_idle_waiting_and_stolen_time_is_not_busy(tmp_path):
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    found = read(tmp_path, PRESSURE)
    assert found.busy_s == (1000 + 100 + 300 + 20 + 30) * tick_s
    assert found.steal_s == 40 * tick_s


def test_pressure_is_that_of_some_task(tmp_path):
    found = read(tmp_path, PRESSURE)
    assert (found.pressure_ns, found.pressure_avg10) == (123_456_000, 1.5)


def test_a_kernel_without_pressure_is_fine(tmp_path):
    assert read(tmp_path, None).pressure_ns is None


def test_counters_of_this_host_only_grow():
    first, second = counters(), counters()
    assert 0 < first.busy_s <= second.busy_s


def test_the_filesystem_is_that_of_the_deepest_and_latest_mount(tmp_path):
    here = tmp_path.resolve()
    info = "\n".join(
        [
            f"30 1 8:1 / {here} rw - xfs /dev/sdc rw",
            "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda rw",
            f"31 1 8:1 / {here} rw - tmpfs none rw",
            f"32 1 8:1 / {here}/deeper rw - btrfs none rw",
        ]
    )
    assert filesystem(here / "results", info) == "tmpfs"
    assert filesystem(here.parent, info) == "ext4"
