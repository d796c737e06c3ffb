"""All that decides one run of the sweep, the base case, and the reason for every number in it."""

import hashlib
import json
from dataclasses import asdict, dataclass

from kvfabric.catalog.models import model_config
from kvfabric.fabric.engines.choice import MAX_MIN
from kvfabric.kvcache.geometry import KVGeometry
from kvfabric.kvcache.geometry_config import geometry_from_config

ROFT, ZCUBE, ZCUBE_SQUARE = "roft", "zcube", "zcube-square"
EVERYWHERE, STICKY = "everywhere", "sticky"
STATIC = "path-destination"
LOW_LOAD, HIGH_LOAD = 0.3, 0.8
DIGEST_LENGTH = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """One run: a fabric with its load balancing, a fleet, and a load.

    Attributes:
        fabric: ``roft``, ``zcube`` (the largest switches) or ``zcube-square`` (one cable per pair
            of switches).
        balancing: policy of ``fabric.routes.load_balancing``.
        queue_pairs: connections per NIC port and message, under ``ecmp``.
        engine: ``max-min`` or ``pfc``.
        nic_gbps: of the NIC of every GPU.
        model: catalog name.
        gpu: catalog name.
        weight_dtype: of the weights.
        num_prefill: prefill workers of 8 GPUs.
        num_decode: decode workers of 8 GPUs.
        prefill_cp: context-parallel ranks, servers each, of a prefill worker.
        placement: ``split`` or ``interleaved``.
        handoff: ``whole_prompt`` or ``layer_wise``.
        routing: of requests to prefill workers.
        receiver: how decode workers are chosen.
        senders: ranks that send a latent (MLA), of which every rank has a copy.
        load: offered prompt computation over what all prefill workers can compute.
        users: clients who wait for an answer before they ask again; they replace ``load``.
        hit_rate: share of the prompt of a warm request that a prefill worker has in its cache.
        cold_share: requests of which nothing is cached anywhere.
        burst_cv: coefficient of variation of the gaps between arrivals; 1 is Poisson.
        context_tokens: median of what a session has said before; the mean is 13 % above.
        output_tokens: median of an answer.
        contexts: ``everywhere``: each of ``num_contexts`` is cached at every prefill worker, as by
            a prefix pool without cost; ``sticky``: each worker has that many of its own.
        num_contexts: what requests continue; so many fit into the cache of a worker.
        pool_stripes: most servers that a prefix is fetched from at once, out of the host memory of
            all; 0: prefixes are in the caches of the workers only.
        num_requests: measured; those that fill the caches come before and are not counted.
        seed: of the load and of the switches' hash functions.
    """

    fabric: str = ROFT
    balancing: str = "ecmp"
    queue_pairs: int = 1
    engine: str = MAX_MIN
    nic_gbps: int = 400
    model: str = "glm-5"
    gpu: str = "h200-sxm-141gb"
    weight_dtype: str = "fp8"
    num_prefill: int = 64
    num_decode: int = 64
    prefill_cp: int = 1
    placement: str = "split"
    handoff: str = "whole_prompt"
    routing: str = "least_loaded"
    receiver: str = "least_loaded"
    senders: str = "first"
    load: float = HIGH_LOAD
    users: int | None = None
    hit_rate: float = 0.9
    cold_share: float = 0.005
    burst_cv: float = 1.0
    context_tokens: int = 24_000
    output_tokens: int = 128
    contexts: str = EVERYWHERE
    num_contexts: int = 8
    pool_stripes: int = 0
    num_requests: int = 1_200
    seed: int = 0

    @property
    def num_gpus(self) -> int:
        """Return the GPUs of the fleet."""
        return 8 * (self.num_prefill * self.prefill_cp + self.num_decode)

    def digest(self, version: str) -> str:
        """Return a name for the result of this run under one version of the package."""
        text = json.dumps({"version": version, **asdict(self)}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


BASE = RunSettings()
"""About the published cluster; see ``BASE_REASONS``."""

BASE_REASONS: tuple[tuple[str, str], ...] = (
    ("1,024 GPUs", "published: a cluster of about 1,000 GPUs"),
    (
        "RoFT of two tiers of 51.2 Tbit/s switches; ZCube of the same switches",
        "the fewest switches that join 1,024 GPUs without oversubscription",
    ),
    (
        "RoFT with ecmp, 1 queue pair",
        "assumed: the load balancing of the published baseline is not stated",
    ),
    (
        "ZCube with static routes",
        (
            "published: hand-designed static routes; which cable of a bundle is not stated,"
            " here it is the destination"
        ),
    ),
    (
        "400 Gbit/s per GPU",
        "published for the fabric; of the cluster that was moved it is not stated",
    ),
    (
        "GLM-5, fp8 weights, bf16 KV cache",
        (
            "assumed: GLM-5.1 is published as the model, its size is not; GLM-5 keeps 89,856"
            " bytes per token and an index beside it"
        ),
    ),
    ("H200", "assumed: the GPUs are not stated; the weights fit into 8 of these"),
    (
        "64 prefill and 64 decode workers of 8 GPUs, prefill in the first servers",
        "assumed: neither ratio nor placement is published",
    ),
    (
        "contexts of 24,000 tokens (median)",
        "assumed for coding, long sessions of many turns: lognormal with sigma 0.5",
    ),
    ("hit rate 90 %", "assumed: a turn adds a tenth of its prompt"),
    ("0.5 % cold prompts", "assumed: above 1 % they are the p99 whatever the fabric does"),
    (
        "answers of 128 tokens (median)",
        "assumed: tool calls; lognormal with sigma 0.8, at most 1,000",
    ),
    (
        "8 contexts, cached at every prefill worker",
        (
            "as from a prefix pool without cost, so that the hit rate is what it is set to; with"
            " sessions that stick to a worker it falls with the load"
        ),
    ),
    (
        "load of 30 % and 80 % of the prefill computation",
        "assumed: quiet and busy; at more, queues for computation hide the fabric",
    ),
    ("least-loaded prefill and decode workers", "assumed: common practice"),
    (
        "the first rank of a worker sends the latent",
        (
            "published: the NICs of a server are used very unevenly; every rank has a copy of an"
            " MLA latent and one may send it"
        ),
    ),
    ("whole prompts are handed over after their prefill", "assumed: the simplest way"),
)


def geometry_of(model: str) -> KVGeometry:
    """Return the geometry of a catalog model."""
    return geometry_from_config(model_config(model, where="model"), where=f"model {model}")
