"""``kvfabric serve``: a cluster of worker processes behind an OpenAI-compatible server."""

import logging
import os
import socket
import sys
import time  # noqa: TID251 - clients are told when the model was loaded
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import uvicorn

from kvfabric.app.record_traffic import TrafficRecorder
from kvfabric.app.serve_workers import local_workers, remote_workers
from kvfabric.engine.cluster_settings import ClusterSettings, handoff_mode
from kvfabric.engine.decision_log import DecisionLog
from kvfabric.engine.executor_spec import ExecutorSpec
from kvfabric.engine.hosts.remote_cluster import RemoteCluster
from kvfabric.engine.kv_layout import KvLayout
from kvfabric.engine.model_sources import ModelSource, open_model
from kvfabric.engine.model_spec import ModelSpec
from kvfabric.engine.process_cluster import ProcessCluster
from kvfabric.engine.server.app import build_app
from kvfabric.engine.server.backend import ServedModel
from kvfabric.engine.server.cluster_backend import ClusterBackend, OutputRelay
from kvfabric.engine.server.lifecycle import Lifecycle, Server
from kvfabric.engine.server.model_codec import ModelCodec
from kvfabric.engine.transport.choose import SHARED
from kvfabric.errors import ConfigError

_logger = logging.getLogger(__name__)

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What the command line says; the names are those of its options."""

    model: str
    served_model_name: str | None
    prefill: int
    decode: int
    workers_on: str | None
    worker_token: str | None
    handoff: str
    layer_groups: int
    kv_transport: str
    host: str
    port: int
    api_key: str | None
    dtype: str
    kv_dtype: str | None
    device: str
    threads: int | None
    block_size: int
    kv_blocks: int | None
    kv_memory_gib: float
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    max_waiting: int
    shutdown_timeout: float
    record: Path | None


def run_serve(values: Mapping[str, Any]) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises:
        ConfigError: a model, an address or a size that cannot be served.
    """
    options = ServeOptions(**values)
    if options.api_key == "":
        raise ConfigError("--api-key is empty", hint="Write a key, or leave the option out")
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="kvfabric: %(message)s")
    source = open_model(options.model)
    settings = _settings(options, source.spec)
    executor = ExecutorSpec(
        model=options.model,
        num_blocks=settings.num_blocks,
        block_size=settings.block_size,
        dtype=options.dtype,
        kv_dtype=options.kv_dtype,
        device=options.device,
        num_threads=options.threads or max(1, (os.cpu_count() or 1) // settings.num_workers),
    )
    recorder = None if options.record is None else TrafficRecorder(options.record)
    with _listen(options.host, options.port) as listener:
        relay = OutputRelay()

        def fail(error: BaseException) -> None:
            relay.fail()
            shown = error if os.environ.get("KVFABRIC_TRACEBACK") else None
            _logger.critical("the control loop has ended: %r; start again", error, exc_info=shown)

        log = None if recorder is None else recorder.log
        with _workers(options, settings, executor, relay, fail, log) as cluster:
            model = _served(options, source, settings)
            codec = ModelCodec(source.tokenizer(), source.chat_template)
            backend = ClusterBackend(
                cluster.loop,
                relay,
                model,
                codec,
                block_size=settings.block_size,
                is_alive=lambda: cluster.is_alive,
            )
            _serve(options, backend, listener, settings)
    if recorder is not None:
        _say(recorder.write(settings, f"{options.model}, {options.dtype}"))


def _workers(
    options: ServeOptions,
    settings: ClusterSettings,
    executor: ExecutorSpec,
    relay: OutputRelay,
    fail: Callable[[BaseException], None],
    log: DecisionLog | None,
) -> AbstractContextManager[ProcessCluster | RemoteCluster]:
    if options.workers_on is None:
        return local_workers(settings, executor, relay, fail, _say, log=log)
    if settings.kv_transport == SHARED:
        raise ConfigError(
            "--kv-transport shared: workers on other hosts cannot map each other's KV cache",
            hint="Write auto, sockets, nixl or mooncake",
        )
    return remote_workers(
        settings,
        executor,
        relay,
        fail,
        _say,
        log=log,
        listen_on=options.workers_on,
        token=options.worker_token,
    )


def _settings(options: ServeOptions, spec: ModelSpec) -> ClusterSettings:
    """Return the cluster; a request may be as long as the model and one worker's KV cache allow."""
    layout = KvLayout(
        num_layers=spec.num_layers,
        block_size=options.block_size,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        kv_dtype=options.kv_dtype or options.dtype,
    )
    num_blocks = options.kv_blocks or int(options.kv_memory_gib * 2**30) // layout.block_bytes
    room = (num_blocks - 1) * options.block_size  # block 0 is the null block
    longest = min(spec.max_positions, room)
    max_model_len = options.max_model_len or longest
    if max_model_len < 2 or max_model_len > longest:
        raise ConfigError(
            f"--max-model-len {max_model_len}: the model takes {spec.max_positions} tokens, "
            f"{num_blocks} KV blocks of {options.block_size} take {max(0, room)}",
            hint=f"Write 2 to {longest}, or more --kv-memory-gib",
        )
    return ClusterSettings(
        num_prefill=options.prefill,
        num_decode=options.decode,
        num_blocks=num_blocks,
        block_size=options.block_size,
        max_model_len=max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        handoff=handoff_mode(options.handoff),
        num_layer_groups=options.layer_groups,
        kv_transport=options.kv_transport,
    )


def _served(options: ServeOptions, source: ModelSource, settings: ClusterSettings) -> ServedModel:
    return ServedModel(
        name=options.served_model_name or options.model,
        max_model_len=settings.max_model_len,
        vocab_size=source.spec.vocab_size,
        created_s=int(time.time()),
    )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror or error}",
            hint="Choose others with --host and --port",
        ) from None


def _serve(
    options: ServeOptions,
    backend: ClusterBackend,
    listener: socket.socket,
    settings: ClusterSettings,
) -> None:
    if options.host not in _LOOPBACK and options.api_key is None:
        _say(f"anybody who reaches {options.host} can use this server; see --api-key")
    num_generating = settings.num_decode or settings.num_prefill
    lifecycle = Lifecycle(num_generating * settings.max_num_seqs + options.max_waiting)
    app = build_app(backend, lifecycle, api_key=options.api_key)
    config = uvicorn.Config(
        app, log_config=None, log_level="warning", access_log=False, lifespan="off", ws="none"
    )
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    _say(f"serving {backend.model.name} on http://{shown}:{port}/v1 (Ctrl-C ends)")
    Server(config, lifecycle, options.shutdown_timeout).run([listener])


def _say(text: str) -> None:
    click.echo(f"kvfabric: {text}", err=True)
