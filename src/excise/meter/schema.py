"""The records of a results directory as JSON Schema, for readers that are not this program."""

from typing import Any

import msgspec

from excise.meter.latency_records import LatencyHeader, LatencyTrial
from excise.meter.pool_records import PoolHeader, PoolTrial
from excise.meter.records import SCHEMA, Header, Trial


def json_schema() -> dict[str, Any]:
    """What docs/schema holds: each file of a results directory, by the kind of run."""
    records = (Header, Trial, LatencyHeader, LatencyTrial, PoolHeader, PoolTrial)
    refs, components = msgspec.json.schema_components(records, ref_template="#/$defs/{name}")
    header, trial, latency_header, latency_trial, pool_header, pool_trial = refs
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Excise results, schema {SCHEMA}",
        "description": "run.json is one run; each line of trials.jsonl (or, compressed, trials.jsonl.gz) is one trial.",
        "anyOf": refs,
        "files": {
            "rollout": {"run.json": header, "trials.jsonl": trial},
            "latency": {"run.json": latency_header, "trials.jsonl": latency_trial},
            "pool": {"run.json": pool_header, "trials.jsonl": pool_trial},
        },
        "$defs": components,
    }


def text() -> str:
    """The file itself."""
    return msgspec.json.format(msgspec.json.encode(json_schema(), order="sorted"), indent=2).decode() + "\n"
