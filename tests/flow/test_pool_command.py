"""`excise pool` as a user meets it: another process, its table, its record, its metrics and its exit code."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

EXCISE = str(Path(sys.executable).parent / "excise")


def pool(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [EXCISE, "pool", *words]
    return subprocess.run(argv, capture_output=True, text=True, env={**os.environ, **env}, check=False, timeout=100)


def recorded(path: Path, *words: str, code: int = 0) -> dict:
    done = pool(*words, "--json", str(path))
    assert done.returncode == code, done.stderr
    return json.loads(path.read_text())


# ---- what it shows


def test_a_minute_of_load_on_the_pretend_pool(tmp_path: Path) -> None:
    done = pool("pool:fake?create_s=0.5", "--load", "poisson:4", "--json", str(tmp_path / "a.json"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("pool:fake?create_s=0.5 under poisson:4: ")
    rows = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    assert {"claim", "deps", "miss", "all", "rollouts", "refill", "idle", "CPU", "waste", "after"} <= set(rows)
    assert re.search(r"^excise: 10 s: \d+ arrived, .*claim p50 .*refill lag p50 ", done.stderr, re.MULTILINE)
    found = json.loads((tmp_path / "a.json").read_text())
    claims = found["claims"]
    assert len(claims) == found["samples"][-1]["arrived"] > 150
    assert not found["ended_early"]
    hits = {hit: sum(one["hit"] == hit for one in claims) for hit in ("deps", "miss")}
    figures = found["figures"]
    assert (figures["hits"]["deps"], figures["misses"]) == (hits["deps"], hits["miss"])
    assert hits["deps"] > hits["miss"] > 0
    times = [sample["at_s"] for sample in found["samples"]]
    assert times == sorted(times)
    assert len(times) > 60


def test_the_same_seed_is_the_same_load(tmp_path: Path) -> None:
    words = ("pool:fake?create_s=0.5", "--load", "poisson:4", "--for", "20s")
    first, second = (recorded(tmp_path / f"{n}.json", *words)["claims"] for n in range(2))
    other = recorded(tmp_path / "other.json", *words, "--seed", "2")["claims"]
    asked = [[(one["at_s"], one["name"]) for one in sorted(claims, key=lambda one: one["at_s"])] for claims in (first, second)]
    assert asked[0] == asked[1]
    assert [one["at_s"] for one in other] != [one["at_s"] for one in first]


def test_the_last_sample_is_of_the_end(tmp_path: Path) -> None:
    """A clone of 1 s, an install of 2 s, a rollout of 2.5 s."""
    found = recorded(tmp_path / "a.json", "pool:fake", "--load", "burst:1", "--mix", "1", "--hold", "2.5s")
    assert found["took_s"] == pytest.approx(5.5)
    assert (found["samples"][-1]["holding"], sum(found["samples"][-1]["hits"].values())) == (0, 1)


def test_sibling_commits_are_found(tmp_path: Path) -> None:
    """Of two specs that are commits of one repository, the second finds the first's sandbox."""
    lines = [{"at_s": 0, "spec": "r1@a", "hold_s": 1}, {"at_s": 20, "spec": "r1@b", "hold_s": 1}]
    load = tmp_path / "load.jsonl"
    load.write_text("".join(json.dumps(line) + "\n" for line in lines))
    claims = recorded(tmp_path / "a.json", "pool:fake?pool.policy=none", "--load", f"replay:{load}", "--mix", "3")["claims"]
    assert [one["hit"] for one in claims] == ["miss", "sibling"]
    assert claims[1]["claim_s"] < claims[0]["claim_s"] / 10


def test_a_group_that_was_announced_finds_what_it_wants(tmp_path: Path) -> None:
    """Nobody has asked for that state before; only who was told can have made it."""
    load = tmp_path / "load.jsonl"
    load.write_text('{"at_s": 20, "spec": "r0@a"}\n' * 4)
    words = ("pool:fake?create_s=0.5&pool.policy=schedule", "--load", f"replay:{load}")
    told = recorded(tmp_path / "told.json", *words, "--expect")["claims"]
    untold = recorded(tmp_path / "untold.json", *words)["claims"]
    assert [(one["hit"], one["claim_s"]) for one in told] == [("deps", 0)] * 4
    assert {one["hit"] for one in untold} == {"miss"}


def test_a_pool_that_is_too_small_makes_them_wait_and_that_is_counted(tmp_path: Path) -> None:
    """Two places, a rollout of 10 s, four at once: the second pair waits for the first from its intended start on."""
    words = ("pool:fake?pool.count=2", "--load", "burst:4", "--hold", "10s", "--mix", "1")
    claims = recorded(tmp_path / "a.json", *words)["claims"]
    times = sorted(one["claim_s"] for one in claims)
    assert times[0] < 5
    assert min(times[2:]) >= 10


def test_claims_that_fail_are_told_with_their_reason() -> None:
    done = pool("pool:fake?fail_create=1", "--load", "burst:3")
    assert done.returncode == 1
    assert "3 failed" in done.stdout
    assert re.search(r"failed +3 x CreateError: .*fail_create", done.stdout)


def test_what_was_not_clean_after_its_reset_is_told_with_its_evidence() -> None:
    words = ("--load", "burst:1", "--mix", "1", "--run", "echo left > evidence")
    done = pool("pool:fake?create_s=0.5&pool.reuse=reset&broken=reset-restores-files", *words)
    assert re.search(r"^quarantine .*evidence", done.stdout, re.MULTILINE), done.stdout


def test_sandboxes_that_die_under_their_rollout_are_lost_and_exit_code_1() -> None:
    done = pool("pool:fake?lose=0.5", "--load", "burst:8")
    assert done.returncode == 1
    assert re.search(r"lost +\d x SandboxLost", done.stdout)


def test_specs_and_owners_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tasks.toml"
    file.write_text('[[specs]]\nname = "web"\nowner = "ann"\n[specs.spec]\nworkdir = "/srv"\n')
    claims = recorded(tmp_path / "a.json", "pool:fake", "--load", "burst:2", "--specs", str(file))["claims"]
    assert {(one["name"], one["owner"]) for one in claims} == {("web", "ann")}


def test_the_arrivals_of_results_are_replayed(tmp_path: Path) -> None:
    from excise.meter.records import Cell
    from excise.meter.results import Writer
    from made_results import made_header, made_trial

    cell = Cell(address="docker", workload="t0", concurrency=3, arrivals_per_s=2.0)
    with Writer(tmp_path / "r", made_header([cell])) as writer:
        for block in range(2):
            for lane in range(3):
                at_ns = (lane + 10 * block) * 10**9
                pieces = [("create", 500.0, None, "")]
                writer.add(made_trial(cell, block, pieces, lane=lane, intended_ns=at_ns))
    claims = recorded(tmp_path / "a.json", "pool:fake", "--load", f"replay:{tmp_path / 'r'}")["claims"]
    assert sorted(one["at_s"] for one in claims) == [10, 11, 12]


def test_a_record_that_cannot_be_kept_is_told_and_exit_code_1() -> None:
    done = pool("pool:fake", "--load", "burst:1", "--json", "/dev/full")
    assert done.returncode == 1
    assert "claim found" in done.stdout
    assert "name another file with --json" in done.stderr


def test_a_real_pool_is_there_for_the_second_burst(tmp_path: Path, runs_here: Callable[[str], None]) -> None:
    runs_here("namespace")
    (tmp_path / "plain.json").write_text("{}")
    words = ("pool:namespace?pool.count=8&pool.pressure=0", "--load", "burst:2/3s", "--for", "6s", "--hold", "100ms")
    found = recorded(tmp_path / "a.json", *words, "--spec", str(tmp_path / "plain.json"))
    assert [one["hit"] for one in found["claims"] if one["at_s"] == 0] == ["miss", "miss"]
    assert {one["hit"] for one in found["claims"] if one["at_s"] == 3} == {"image"}
    assert found["figures"]["idle_bytes"] > 0
    assert found["spent"]["children_s"] > 0  # the launcher and what it started


# ---- a terminal, signals, metrics


def test_a_terminal_has_a_live_table() -> None:
    leader, follower = pty.openpty()
    argv = [EXCISE, "pool", "pool:fake", "--load", "poisson:4", "--for", "10s"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=follower, env={**os.environ, "TERM": "xterm"}) as process:
        os.close(follower)
        drawn = b""
        while True:
            try:
                piece = os.read(leader, 1 << 16)
            except OSError:
                break  # the other side is closed
            if not piece:
                break
            drawn += piece
        out, _ = process.communicate(timeout=60)
    os.close(leader)
    assert process.returncode == 0
    assert b"claim found" in drawn
    assert b"arrived" in drawn
    assert b"\x1b[" in drawn
    assert b"\x1b[" not in out


@pytest.fixture
def served(tmp_path: Path):
    """A pool on the real clock, which ends when it is told to."""
    words = ["pool:fake?create_s=0.05", "--load", "poisson:20", "--for", "10m", "--hold", "50ms", "--metrics", "0"]
    (tmp_path / "plain.json").write_text("{}")
    argv = [EXCISE, "pool", *words, "--spec", str(tmp_path / "plain.json"), "--json", str(tmp_path / "early.json")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        try:
            yield process, re.search(r"http://127\.0\.0\.1:\d+/metrics", said)[0]  # pyright: ignore[reportOptionalSubscript]
        finally:
            process.kill()


def scraped(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url, timeout=20) as answer:  # noqa: S310 - our own, on this machine
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {
        sample.name + "".join(f",{key}={value}" for key, value in sample.labels.items()): sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics_are_served_while_it_runs_and_totals_only_grow(served) -> None:
    _, url = served
    first = scraped(url)
    while (second := scraped(url))["excise_load_arrivals_total"] < first["excise_load_arrivals_total"] + 3:
        pass
    totals = [name for name in first if re.search(r"_(total|bucket|count|sum)\b", name)]
    assert len(totals) > 15
    assert [name for name in totals if second.get(name, -1) < first[name]] == []
    assert second["excise_pool_count_cap"] == 64


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ending_it_early_prints_what_there_is(served, tmp_path: Path, number: signal.Signals, code: int) -> None:
    process, url = served
    while not any(name.startswith("excise_load_claim_seconds_count") for name in scraped(url)):
        pass
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert "claim found" in out
    assert err.endswith("excise: ended early; its sandboxes were closed\n")
    found = json.loads((tmp_path / "early.json").read_text())
    assert found["ended_early"]
    assert len(found["claims"]) >= 1


# ---- wrong requests


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["fake"], "write pool:fake"),
        (["pool:nonsense"], "no substrate is called 'nonsense'"),
        (["pool:fake?pool.count=0"], "pool.count=0"),
        (["pool:fake?pool.colour=red"], "pool.colour"),
        (["pool:fake", "--load", "nonsense"], "poisson:RATE"),
        (["pool:fake", "--load", "poisson:fast"], "poisson:RATE"),
        (["pool:fake", "--load", "poisson:0"], "arrivals a second"),
        (["pool:fake", "--load", "burst:1.5"], "whole number"),
        (["pool:fake", "--load", "burst:0"], "burst:64"),
        (["pool:fake", "--load", "burst:4/soon"], "time between bursts"),
        (["pool:fake", "--load", "replay:"], "replay:FILE"),
        (["pool:fake", "--load", "replay:/nowhere.jsonl"], "/nowhere.jsonl"),
        (["pool:fake", "--load", "poisson:0.001", "--for", "1s"], "brings nobody"),
        (["pool:fake", "--for", "soon"], "--for soon"),
        (["pool:fake", "--for", "0"], "--for 0"),
        (["pool:fake", "--hold", "-1s"], "--hold"),
        (["pool:fake", "--hold", "nan"], "--hold nan"),
        (["pool:fake", "--mix", "0"], "--mix 0"),
        (["pool:fake", "--spec", "a.json", "--specs", "b.toml"], "leave one of them out"),
        (["pool:fake", "--spec", "/nowhere.json"], "/nowhere.json"),
        (["pool:fake", "--metrics", "many"], "--metrics many"),
        (["pool:fake", "--metrics", "70000"], "--metrics 70000"),
        (["pool:fake", "--json", "/nowhere/a.json"], "no directory /nowhere"),
        (["pool:fake", "--json", "/"], "--json / is a directory"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_exit_code_2(words: list[str], part: str) -> None:
    done = pool(*words)
    assert part in done.stderr
    assert done.stderr.startswith("excise: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert (done.returncode, done.stdout) == (2, "")


# ---- the record as a page


def test_the_record_is_reported_as_a_page(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    recorded(tmp_path / "run.json", "pool:fake?create_s=0.5", "--load", "poisson:4", "--for", "20s")
    done = subprocess.run(
        [EXCISE, "report", str(tmp_path / "run.json")], capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stdout.startswith("Under poisson:4 a claim on pool:fake?create_s=0.5 takes ")
    page = (tmp_path / "run-report/index.html").read_text()
    assert "What claims find as time goes on" in page
    assert "core-seconds of its children" in page
    assert {one.name for one in (tmp_path / "run-report/figures").iterdir()} == {"load-hits.svg", "load-hits.png"}


@pytest.mark.parametrize("text", ["", "{}", '{"kind": "pool-load"}', "nonsense"])
def test_a_file_that_is_no_record_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    argv = [EXCISE, "report", str(tmp_path / "run.json")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 2
    assert "is no record of `excise pool --json`" in done.stderr
    assert done.stderr.count("\n") == 1
