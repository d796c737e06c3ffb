"""Runs the command line in this process, as the installed script would."""

import sys
from dataclasses import dataclass

import pytest

from kvfabric.app.main import main


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Ran:
    """Return exit code and output of ``kvfabric`` with these arguments."""
    before = sys.argv
    sys.argv = ["kvfabric", *arguments]
    try:
        main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        sys.argv = before
    captured = capsys.readouterr()
    return Ran(code, captured.out, captured.err)


TINY = """
schema_version: 1
name: tiny
model: llama-3.1-8b
gpu: h100-sxm-80gb
users: 10
context_tokens: 2000
workers: {prefill: 20, decode: 12, tp: 1}
fabric:
  nic_rate: 400 Gbit/s
  switch: 6.4 Tbit/s
  kinds: [clos, roft, zcube]
workload:
  kind: generated
  arrivals: {kind: poisson, rate: 20 /s}
  prompt: {kind: uniform, minimum: 500, maximum: 4000}
  output: {kind: uniform, minimum: 1, maximum: 60}
  requests: 60
slo: {ttft: 1 s, tpot: 50 ms}
"""
