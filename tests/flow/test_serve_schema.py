"""The control plane is what its OpenAPI document says: schemathesis asks it what nobody would."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.served import keys, serving

NOT_ASKED = "positive_data_acceptance"
"""A well-formed spec that the served substrate cannot honour is a 422, and no document can say which ones these are."""
ANSWERS = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "4xx", 503, 504]  # what is asked for may take longer than it was given, or not be had now
"""
EXAMPLES = 15


@pytest.mark.timeout(240)
def test_the_control_plane_is_what_its_document_says(tmp_path: Path, runs_here: Callable[[str], None]) -> None:
    runs_here("namespace")
    (tmp_path / "schemathesis.toml").write_text(ANSWERS)
    key = keys(tmp_path / "keys", "fuzz", sandboxes=32)["fuzz"]
    with serving(tmp_path, "--keys", str(tmp_path / "keys"), "--drain", "0s") as served:
        asked = subprocess.run(
            [
                str(Path(sys.executable).parent / "schemathesis"),
                "run",
                f"{served.url}/openapi.json",
                *("--header", f"Authorization: Bearer {key}"),
                *("--checks", "all", "--exclude-checks", NOT_ASKED),
                *("--max-examples", str(EXAMPLES), "--seed", "1", "--generation-database", "none"),
                *("--request-timeout", "30", "--continue-on-failure", "--no-color"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        log = served.log.read_text()
    assert asked.returncode == 0, asked.stdout
    assert "Traceback" not in log, log
