from dataclasses import replace

import msgspec

from excise.economics.table import rows
from excise.economics.weighed import Observed
from excise.report.economics import markdown
from measured_host import measured_host, weighed
from synthetic_run import cell


def table(host, known=("microvm", "local")):
    return {one.address: one for one in rows(host, known)}


def test_every_substrate_has_a_row_and_what_was_not_measured_says_so():
    host = measured_host()
    found = table(host)
    assert found["docker"].measured
    assert not found["microvm"].measured
    assert "local" not in found
    text = markdown(rows(host, ("microvm",)), host)
    (line,) = [line for line in text.splitlines() if line.startswith("| `microvm`")]
    assert (line.count("not measured"), line.count("not recorded")) == (7, 2)
    assert "`microvm` is not measured: `excise measure microvm` does, where it runs." in text


def test_clouds_are_rows_that_were_not_run():
    text = markdown(rows(measured_host()), measured_host())
    clouds = [line for line in text.splitlines() if line.startswith("| a cloud's VM")]
    assert len(clouds) == 2
    assert all(line.count("not run") == 7 for line in clouds)


def test_resets_by_snapshot_are_told_and_else_by_fork():
    extra = {
        cell("docker", reset="fork"): (40.0, 50.0),
        cell("docker+guest", reset="fork"): (40.0, 50.0),
        cell("gvisor", reset="fork"): (40.0, 50.0),
    }
    found = table(measured_host(extra=extra))
    assert found["docker"].reset_by == "fork"
    assert found["namespace"].reset_by == ""


def test_a_slowdown_of_hardly_any_work_is_not_told():
    found = table(measured_host())
    assert found["docker"].slowdown is None  # actions of two milliseconds
    assert found["chroot"].reference


def test_what_neighbours_saw_and_what_idle_ones_weigh_stand_beside():
    seen = {"docker": Observed(address="docker", seen={"its load": True, "others' files": False, "others' ports": None})}
    host = replace(measured_host(), observed=seen, weighed={"docker": weighed("docker", 2048)})
    text = markdown(rows(host), host)
    (line,) = [line for line in text.splitlines() if line.startswith(("| `docker` |", "| `docker`~ |"))]
    cells = [word.strip() for word in line.strip("| ").split("|")]
    assert cells[3] == "its load"
    assert cells[-2:] == ["2.00", "10"]
    assert table(host)["docker"].fit_in_host == 8 * 1024 / 2


def test_a_row_says_what_runs_its_machines_code():
    host = measured_host()

    def kernel_of_gvisor(accel):
        told = [msgspec.structs.replace(one, versions={"accel": accel} if accel else {}) for one in rows(host)]
        (line,) = [line for line in markdown(told, host).splitlines() if line.startswith("| `gvisor`")]
        return line.split("|")[2].strip()

    said = [kernel_of_gvisor(accel) for accel in ("", "tcg (there is no /dev/kvm)", "kvm")]
    assert said == ["intercepted", "intercepted, emulated (TCG)", "intercepted (KVM)"]
