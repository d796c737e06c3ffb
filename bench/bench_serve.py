"""Load on ``kvfabric serve`` by guidellm: python bench/bench_serve.py --guidellm PATH.

Starts a server, lets guidellm (installed in an environment of its own) send requests to it, and
prints how many ended well, and their latencies as the client saw them. Exits with 1 if any failed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WORDS = "The switch forwards each frame to the port behind which its destination was seen last. "


def main() -> None:
    """Run the load that the command line describes."""
    options = _options()
    command = [sys.executable, "-c", "from kvfabric.app.main import main; main()", "serve"]
    command += ["--model", options.model, "--port", "0", "--threads", str(options.threads)]
    command += ["--prefill", str(options.prefill), "--decode", str(options.decode)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:  # noqa: S603
        try:
            report = _load(options, _address(server))
        finally:
            server.terminate()
    sys.exit(_show(report))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--guidellm", required=True, help="path of the installed script")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prefill", type=int, default=1)
    parser.add_argument("--decode", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--streams", type=int, default=8, help="requests at once")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=16)
    return parser.parse_args()


def _address(server: subprocess.Popen[str]) -> str:
    for line in server.stderr or ():
        if found := re.search(r"on (http://\S+)/v1", line):
            return found[1]
    sys.exit("the server did not start")


def _load(options: argparse.Namespace, url: str) -> dict[str, Any]:
    """Return guidellm's report of requests whose prompts differ from their first word on."""
    with tempfile.TemporaryDirectory() as folder:
        prompts, report = Path(folder) / "prompts.jsonl", Path(folder) / "report.json"
        count = options.output_tokens
        rows = [
            {"prompt": f"{i}. {WORDS * 4}", "output_tokens_count": count}
            for i in range(options.requests)
        ]
        prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
        backend = f"kind=openai_http,target={url},model={options.model},http2=false"
        command = [
            *(options.guidellm, "run", "--disable-progress"),
            *("--backend", f"{backend},request_format=/v1/completions"),
            *("--profile", f"kind=concurrent,streams={options.streams}"),
            *("--constraint", f"kind=max_requests,count={options.requests}"),
            *("--data", f"kind=json_file,path={prompts}"),
            *("--output", f"kind=json,path={report}"),
        ]
        environment = os.environ | {"HF_HUB_OFFLINE": "1"}
        subprocess.run(command, check=True, env=environment, stdout=sys.stderr)  # noqa: S603
        found: dict[str, Any] = json.loads(report.read_text())
        return found


def _show(report: dict[str, Any]) -> int:
    """Print one run; return the exit code."""
    (run,) = report["benchmarks"]
    requests = {
        kind: len(run["requests"][kind]) for kind in ("successful", "errored", "incomplete")
    }
    print(requests)
    for name in ("time_to_first_token_ms", "inter_token_latency_ms", "output_tokens_per_second"):
        found = run["metrics"][name]["successful"]
        percentiles = found["percentiles"]
        print(
            f"{name}: mean {found['mean']:.1f}, p50 {percentiles['p50']:.1f}, "
            f"p99 {percentiles['p99']:.1f}"
        )
    return 0 if requests["errored"] == requests["incomplete"] == 0 else 1


if __name__ == "__main__":
    main()
