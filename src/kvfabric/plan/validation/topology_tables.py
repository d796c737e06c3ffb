"""Published counts, path lengths and costs of fabrics.

Sources: "From ATOP to ZCube", SIGCOMM 2025, DOI 10.1145/3718958.3750503, Tables 3, 6 and 7 and
Fig. 9; NVIDIA DGX SuperPOD H100 and B200 reference architectures; DeepSeek-V3, ISCA 2025, Table 3;
Alibaba HPN, SIGCOMM 2024 (read in a summary).
"""

from typing import Final, NamedTuple


class Counts(NamedTuple):
    """What Table 7 counts."""

    switches: int
    copper: int
    fibre: int
    optics: int
    nic_ports_per_gpu: int


TABLE_7: Final = (
    ("roft", 1024, 32, 3, Counts(160, 0, 3072, 6144, 1), 7.47),
    ("roft", 4096, 64, 3, Counts(320, 0, 12288, 24576, 1), 27.92),
    # The cost read for this row, 92.93, does not fit the linear prices of the other rows, which
    # give 102 to 108; it is taken for 102.93.
    ("roft", 16384, 128, 3, Counts(640, 0, 49152, 98304, 1), 102.93),
    ("rail-only", 1024, 32, None, Counts(96, 0, 2048, 4096, 1), 5.40),
    ("rail-only", 4096, 64, None, Counts(192, 0, 8192, 16384, 1), 20.41),
    ("rail-only", 16384, 128, None, Counts(384, 0, 32768, 65536, 1), 76.38),
    ("hpn", 1024, 64, None, Counts(96, 0, 3072, 6144, 2), 5.87),
    ("hpn", 4096, 128, None, Counts(192, 0, 12288, 24576, 2), 22.32),
    ("hpn", 16384, 256, None, Counts(384, 0, 49152, 98304, 2), 84.03),
    ("zcube", 1024, 64, None, Counts(64, 1024, 2048, 4096, 2), 3.99),
    ("zcube", 4096, 128, None, Counts(128, 4096, 8192, 16384, 2), 15.20),
    ("zcube", 16384, 256, None, Counts(256, 16384, 32768, 65536, 2), 57.28),
    ("zcube", 4096, 48, None, Counts(640, 4096, 12288, 24576, 2), 22.21),
)
"""(kind, GPUs, radix, tiers, counts, cost in million USD read off Fig. 9, good to 10 %)."""

TABLE_7_DIRECT: Final = (
    # The Dragonfly rows are named after 1,024, 4,096 and 16,384 GPUs, but their cables count every
    # GPU port of the canonical sizes: 1,056, 5,256 and 16,512.
    # The cost read for 5,256, 11.80, is no oracle: after 0.9k per NIC and 0.6k per optical module,
    # our lowest prices, it leaves 3.6k for a switch of 23 ports, yet 5.3k for one of 15 ports in
    # the first row. Ours is 13.9 to 40.6.
    ("dragonfly", 1056, 15, Counts(264, 1980, 528, 1056, 1), 3.12),
    ("dragonfly", 5256, 23, Counts(876, 10074, 2628, 5256, 1), None),
    ("dragonfly", 16512, 31, Counts(2064, 31992, 8256, 16512, 1), 45.35),
    ("bcube", 1024, 32, Counts(64, 1024, 1024, 2048, 2), 3.39),
    ("bcube", 4096, 64, Counts(128, 4096, 4096, 8192, 2), 13.56),
    ("bcube", 16384, 128, Counts(256, 16384, 16384, 32768, 2), 52.67),
)
"""The same of fabrics whose GPUs' switches are cabled directly, without tiers."""

TABLE_6: Final = (
    ("roft", 128, 3, {400: 49152}),
    ("rail-only", 128, None, {400: 32768}),
    ("hpn", 256, None, {400: 16384, 200: 32768}),
    ("zcube", 256, None, {200: 49152}),
)
"""(kind, radix, tiers, cables by Gbit/s) of 16,384 GPUs."""

TABLE_3: Final = (
    ("roft", 1024, 32, 3, 5.47214, 5.34897),
    ("roft", 4096, 64, 3, 5.48523, 5.42711),
    ("roft", 16384, 128, 3, 5.49240, 5.46420),
    # Rail-only has the second figure alone: its rails are not joined.
    ("rail-only", 1024, 32, None, None, 4.61388),
    ("rail-only", 4096, 64, None, None, 4.74725),
    ("rail-only", 16384, 128, None, None, 4.81182),
    ("hpn", 16384, 256, None, 3.98450, 3.92895),
    ("zcube", 1024, 64, None, 2.93939, 2.93255),
    ("zcube", 4096, 128, None, 2.96923, 2.96752),
    ("zcube", 16384, 256, None, 2.98450, 2.98407),
    ("zcube", 4096, 48, None, 4.75092, 4.74921),
)
"""(kind, GPUs, radix, tiers, average links of a path, the same with pairs in a server at 1)."""

TABLE_3_NOT_FOLLOWING: Final = (
    # 32 GPUs share each leaf, which is what 3.93939 = 4 - 2 * 31 / 1023 says. Then 7 GPUs are 1
    # link away, 31 are 2, 31 * 7 are 3 (through a neighbor in a server) and 768 are 4: 3.70674.
    ("hpn", 1024, 64, None, 3.93939, 3.76918),
    # Table 7 says 128 ports of 200G: 64 GPUs on a leaf. The path lengths belong to leaves with 128
    # GPUs, that is 256 ports, which give both exactly.
    ("hpn", 4096, 128, None, 3.93797, 3.71575),
)
"""Rows of Table 3 that do not follow from the fabrics of Table 7."""

TABLE_3_DIRECT: Final[tuple[tuple[str, int, int, dict[str, int], float, float | None], ...]] = (
    # Dragonfly: with all GPU ports of the canonical size in use and the relative ("palmtree")
    # arrangement of global cables. Its lengths with servers, 4.62732 at 1,056 GPUs, need servers
    # whose two routers stand in different groups; here both stand in one rack.
    ("dragonfly", 1056, 15, {}, 4.67867, None),
    ("dragonfly", 5256, 23, {}, 4.79810, None),
    ("bcube", 1024, 32, {}, 3.87879, 3.65982),
    ("bcube", 4096, 64, {}, 3.93846, 3.82906),
    ("bcube", 4096, 16, {"k": 3}, 5.62637, 5.18877),
    ("zcube-recursive", 1024, 64, {}, 2.93939, 2.93255),
    ("zcube-recursive", 4096, 128, {}, 2.96923, 2.96752),
    ("zcube-recursive", 4096, 48, {"k": 3}, 3.80975, 3.78561),
)
"""(kind, GPUs, radix, shape, average path length, the same with pairs in a server at 1)."""

TABLE_3_LARGEST: Final = (
    # A Dragonfly router then has a whole server, and both agree.
    ("dragonfly", 16512, 31, 4.85422, 4.85379),
    ("bcube", 16384, 128, 3.96899, 3.91430),
)
"""The same of 16,384 GPUs."""

MOST_SWITCHES: Final = (
    # "From ATOP to ZCube" and z.ai/blog/zcube: 1, 3 and 5 switches in 1, 2 and 3 tiers of Clos, 2
    # in ZCube(n,2), 4 in ZCube(n,3)-partial.
    ("clos", 128, 128, None, 1),
    ("roft", 1024, 128, None, 3),
    ("roft", 1024, 32, None, 5),
    ("zcube", 1024, 64, None, 2),
    ("zcube", 4096, 48, None, 4),
)
"""(kind, GPUs, radix, tiers, most switches on a shortest path)."""

SUPERPOD_H100: Final = (
    # Table 4 of the reference architecture, 64-port QM9700.
    (248, 8, 4, 256),
    (504, 16, 8, 512),
    (760, 24, 16, 768),
    (1016, 32, 16, 1024),
)
"""(GPUs, leaves, spines, cables between them)."""

DEEPSEEK_TABLE_3: Final = (
    ("clos", 2_048, 2, 96, 2_048),
    ("multi-plane", 16_384, 2, 768, 16_384),
    ("clos", 65_536, 3, 5_120, 131_072),
)
"""(kind, GPUs, tiers, switches of 64 ports, links between them)."""

SUPERPOD_B200: Final = (
    (512, 16, 8, 0),
    (1024, 32, 16, 0),
    (2048, 64, 32, 0),
    (4096, 128, 128, 64),
    (8192, 256, 256, 128),
    (16384, 512, 512, 256),
)
"""(GPUs, leaves, spines, cores) of the compute fabric table."""

HPN_SHAPE: Final = {"gpus_per_leaf": 128, "uplinks": 60, "core_uplinks": 8}
"""A leaf of 51.2 Tbit/s has 128 GPUs (and 8 spare ports) at 200G and 60 x 400G up; an aggregation
switch has 8 of 128 ports to the cores."""

HPN_SIZES: Final = ((1_024, 16, 8), (15_360, 240, 120))
"""(GPUs, leaves, aggregation switches): a segment, with the aggregation switches that its leaves
need alone, and a pod of 15 segments."""
