"""Profiles read from a folder, in every layout, and every mistake with its file and line."""

from collections.abc import Callable
from pathlib import Path

import pytest
from profiles import META, attention_csv, write_profile

from kvfabric.app.profile_directory import read_profile
from kvfabric.errors import ConfigError, UnsupportedError
from kvfabric.protocol.provenance import SourceKind

MOE = """\
tokens,activated_experts,time_us
1,2,10
4,2,12.5
1,4,20
"""
MOE_BY_RANKS = """\
ep,tokens,activated_experts,time_us
1,1,2,10
2,1,1,6
"""


def test_folder_of_profiles_gives_the_wanted_degree(tmp_path: Path) -> None:
    write_profile(tmp_path)
    write_profile(tmp_path, name="profile_tp2")
    assert [read_profile(tmp_path, tp=tp).tp for tp in (1, 2)] == [1, 2]


def test_profilers_own_layout_is_read(tmp_path: Path) -> None:
    """Folders tp<N> with one meta.yaml above them, as LLMServingSim writes them."""
    folder = write_profile(tmp_path, name="tp4")
    (folder / "meta.yaml").rename(tmp_path / "meta.yaml")
    assert read_profile(tmp_path, tp=4).tp == 4


def test_folder_of_one_profile_is_read(tmp_path: Path) -> None:
    assert read_profile(write_profile(tmp_path)).tp == 1
    assert read_profile(write_profile(tmp_path, name="mine"), tp=8).tp == 8


def test_times_are_exact_femtoseconds(tmp_path: Path) -> None:
    found = read_profile(write_profile(tmp_path))
    assert found.tokens["o_proj"].at(64) == 12_125_000_000
    assert found.requests["sampler"].at(64) == 52_250_000_000


def test_source_names_model_gpu_and_engine(tmp_path: Path) -> None:
    source = read_profile(write_profile(tmp_path)).source
    assert source.kind is SourceKind.MEASURED
    assert str(source).endswith("of round/model tp 1 on Round GPU, vLLM 0.19.0 (2026-04-24)")


def test_points_of_a_second_grid_are_left_out(tmp_path: Path) -> None:
    axes = read_profile(write_profile(tmp_path)).attention.axes
    assert axes == ((0, 16, 32), (0, 16, 32, 64), (0, 1, 2, 4), (0, 16, 32, 64))


def test_without_a_grid_in_meta_all_points_count(tmp_path: Path) -> None:
    folder = write_profile(tmp_path)
    (folder / "meta.yaml").write_text(META.split("attention_grid")[0])
    axes = read_profile(folder).attention.axes
    assert axes[0] == (0, 16, 24, 32)
    assert axes[2] == (0, 1, 2, 3, 4)


def test_grid_with_a_fractional_factor_takes_rounded_values(tmp_path: Path) -> None:
    folder = write_profile(tmp_path)
    meta = META.replace("0, 16-32 x2", "0, 16-32 x1.5").replace("0, 1-4 x2", "0, 1-4 x1.5")
    (folder / "meta.yaml").write_text(meta)
    axes = read_profile(folder).attention.axes
    assert axes[0] == (0, 16, 24, 32)
    assert axes[2] == (0, 1, 2, 3, 4)  # 1, 1.5, 2.25, 3.4, 4


def test_newer_attention_file_is_read(tmp_path: Path) -> None:
    """With a kernel name and the tokens per decode; several tokens are speculative decoding."""
    folder = write_profile(tmp_path)
    plain = read_profile(folder).attention
    header, *rows = attention_csv().splitlines()
    lines = [f"layer,decode_q_len,{header}"]
    lines += [f"attention,{q},{row}" for q in (1, 4) for row in rows]
    (folder / "attention.csv").write_text("\n".join(lines))
    assert read_profile(folder).attention == plain


def test_experts_are_taken_from_the_first_degree(tmp_path: Path) -> None:
    (write_profile(tmp_path) / "moe.csv").write_text(MOE)
    write_profile(tmp_path, name="profile_tp2")
    experts = read_profile(tmp_path, tp=2).experts
    assert experts is not None
    assert experts.activated == (2, 4)
    assert experts.num_shards == 1
    assert experts.at(4, 2) == 12_500_000_000


@pytest.mark.parametrize(("num_data_ranks", "num_shards"), [(1, 1), (2, 2), (4, 1)])
def test_experts_of_as_many_ranks_are_preferred(
    tmp_path: Path, num_data_ranks: int, num_shards: int
) -> None:
    (write_profile(tmp_path) / "moe.csv").write_text(MOE_BY_RANKS)
    experts = read_profile(tmp_path, num_data_ranks=num_data_ranks).experts
    assert experts is not None
    assert experts.num_shards == num_shards


def test_profile_without_experts_has_none(tmp_path: Path) -> None:
    assert read_profile(write_profile(tmp_path)).experts is None


def replaced(name: str, old: str, new: str) -> Callable[[Path], None]:
    """Return what puts one mistake into a file."""

    def put(folder: Path) -> None:
        path = folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return put


def written(name: str, text: str) -> Callable[[Path], None]:
    """Return what replaces a file."""

    def put(folder: Path) -> None:
        (folder / name).write_text(text)

    return put


def removed(name: str) -> Callable[[Path], None]:
    """Return what takes a file away."""
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (replaced("dense.csv", "embedding,64,", "embeding,64,"), r"dense\.csv:3: unknown operator"),
        (replaced("dense.csv", "64,12.125", "64,fast"), r"dense\.csv:3: time_us 'fast'"),
        (replaced("dense.csv", "64,12.125", "64,-1"), r"dense\.csv:3: time_us '-1'"),
        (replaced("dense.csv", "64,12.125", "64,inf"), r"dense\.csv:3: time_us 'inf'"),
        (replaced("dense.csv", "64,12.125", "64,nan"), r"dense\.csv:3: time_us 'nan'"),
        (replaced("dense.csv", "64,12.125", "6.4,12"), r"dense\.csv:3: tokens '6\.4'"),
        (replaced("dense.csv", "64,12.125", "0,12"), r"dense\.csv:3: tokens 0"),
        (replaced("dense.csv", "64,12.125", "64"), r"dense\.csv:3: 2 values under 3 columns"),
        (replaced("dense.csv", "64,12.125", "1,12"), r"dense\.csv:3: embedding at 1 tokens.*twice"),
        (replaced("dense.csv", "tokens", "token"), r"dense\.csv:1: header .* lacks tokens"),
        (written("dense.csv", ""), r"dense\.csv:1: header '' lacks layer, tokens, time_us"),
        (written("dense.csv", "layer,tokens,time_us\n"), r"dense\.csv: no rows"),
        (written("dense.csv", "layer,tokens,time_us\no_proj,1,2\n"), r"lacks embedding, final_l"),
        (removed("dense.csv"), r"dense\.csv: cannot read the file"),
        (
            replaced("per_sequence.csv", "sampler", "sampling"),
            r"per_sequence\.csv:4: unknown operator 'sampling'\. Known here: lm_head, sampler",
        ),
        (removed("per_sequence.csv"), r"per_sequence\.csv: cannot read"),
        (
            replaced("attention.csv", "kv_prefill", "prefill_key"),
            r"attention\.csv:1: .* lacks kv_pr",
        ),
        (
            written(
                "attention.csv",
                "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n16,0,0,0,1\n16,0,0,0,2\n",
            ),
            r"attention\.csv:3: the point \(16, 0, 0, 0\) stands twice",
        ),
        (
            written(
                "attention.csv",
                "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n16,0,0,0,1\n32,0,0,0,2\n",
            ),
            r"attention\.csv: every history is 0",
        ),
        (
            replaced("attention.csv", "\n16,0,0,0,", "\n17,0,0,0,"),
            r"no attention time for 16 prompt",
        ),
        (removed("meta.yaml"), r"no meta\.yaml"),
        (written("meta.yaml", "a: [1"), r"meta\.yaml:1: "),
        (written("meta.yaml", "- a\n"), r"meta\.yaml: no mapping"),
        (
            replaced("meta.yaml", "0, 16-32 x2", "16 to 32"),
            r"attention_grid\.chunks: grid '16 to 32",
        ),
        (
            replaced("meta.yaml", "0, 16-32 x2", "16-32 x1"),
            r"attention_grid\.chunks: grid '16-32 x1",
        ),
        (written("moe.csv", MOE.replace("1,4,20", "0,4,20")), r"moe\.csv:4: tokens 0"),
        (written("moe.csv", MOE_BY_RANKS.replace("1,1,2,10\n", "")), r"measured for ep 2"),
    ],
)
def test_mistake_is_refused_with_its_place(
    tmp_path: Path, mistake: Callable[[Path], None], message: str
) -> None:
    folder = write_profile(tmp_path)
    mistake(folder)
    with pytest.raises(ConfigError, match=message):
        read_profile(tmp_path)


def test_family_with_query_norm_must_have_it_measured(tmp_path: Path) -> None:
    folder = write_profile(tmp_path, leave_out=("qk_norm",))
    assert "qk_norm" not in read_profile(folder).tokens
    replaced("meta.yaml", "architecture: llama", "architecture: qwen3")(folder)
    with pytest.raises(ConfigError, match="qwen3 model lacks qk_norm"):
        read_profile(folder)


def test_other_kernels_are_refused(tmp_path: Path) -> None:
    folder = write_profile(tmp_path)
    header, *rows = attention_csv().splitlines()
    lines = [f"layer,{header}", f"indexer,{rows[0]}"]
    (folder / "attention.csv").write_text("\n".join(lines))
    with pytest.raises(UnsupportedError, match=r"attention\.csv:2: attention kernel 'indexer'"):
        read_profile(folder)


def test_recurrent_layers_are_refused(tmp_path: Path) -> None:
    (write_profile(tmp_path) / "linear_attention.csv").write_text("layer\n")
    with pytest.raises(UnsupportedError, match=r"linear_attention\.csv: recurrent layers"):
        read_profile(tmp_path)


def test_degree_that_was_not_measured_is_refused_with_those_that_were(tmp_path: Path) -> None:
    write_profile(tmp_path)
    with pytest.raises(ConfigError, match="no profile of tp 2; it holds profile_tp1"):
        read_profile(tmp_path, tp=2)
    with pytest.raises(ConfigError, match="no profile of tp 2; it holds none"):
        read_profile(tmp_path / "profile_tp1", tp=2)


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere: no such folder"):
        read_profile(tmp_path / "nowhere")
