"""Captures on an NVIDIA GPU: what they ask of CUDA, where there are none, and the tests' stand-in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from eagle_core.cli import doctor
from eagle_core.config import LoadConfig
from eagle_core.kernels import graphs
from eagle_core.kernels.cuda_graphs import CudaCapture, NoHostReads, graph_captures
from eagle_core.kernels.graphs import CaptureFailed, agree
from eagle_core.kernels.recording import Unrecordable
from eagle_core.target import Target
from eagle_core.testing import tiny_model
from tests.support.graph_pairs import VOCABULARY, bushy
from tests.support.recorded_graphs import RecordedCapture

CPU = torch.device("cpu")


class FakeCuda:
    """As much of ``torch.cuda`` as captures use: what is current, what is captured, what is reserved."""

    def __init__(self) -> None:
        self.current = "main"
        self.n_pools = 0
        self.reserved = 0
        self.breaks = False
        self.captured: list[tuple[int, str, str]] = []

    class Stream:
        def __init__(self, device: Any) -> None:
            self.waited_for: list[object] = []

        def wait_stream(self, other: object) -> None:
            self.waited_for.append(other)

    class Graph:
        n_replays = 0

        def replay(self) -> None:
            self.n_replays += 1

    def graph_pool_handle(self) -> int:
        self.n_pools += 1
        return self.n_pools

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def graph(self, graph: Any, pool: int, stream: Any, capture_error_mode: str) -> Iterator[None]:
        self.current = stream
        yield
        self.reserved += 100
        if self.breaks:
            raise RuntimeError("operation failed due to a previous error during capture\nlong text")
        self.current = "main"
        self.captured.append((pool, capture_error_mode, "ok"))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    main = FakeCuda.Stream(None)
    fake.current = main
    replaced = {
        "Stream": FakeCuda.Stream, "CUDAGraph": FakeCuda.Graph, "stream": fake.stream, "graph": fake.graph,
        "current_stream": lambda: fake.current, "device": lambda _: nullcontext(),
        "graph_pool_handle": fake.graph_pool_handle, "memory_reserved": lambda _: fake.reserved,
    }  # fmt: skip
    for name, value in replaced.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return fake


def test_host_reads_are_seen() -> None:
    values = torch.tensor([1.0, 2.0, 0.0])
    reads: list[Callable[[], object]] = [
        lambda: values.sum().item(),
        lambda: bool(values[0] > 0),
        lambda: values.nonzero(),
        lambda: values[values > 0],
        lambda: torch.equal(values, values),
    ]
    for read in reads:
        for mode in (torch.inference_mode, torch.no_grad):
            with pytest.raises(Unrecordable, match="host"), mode(), NoHostReads():
                read()
    with NoHostReads():
        assert (values * 2).cumsum(0).shape == (3,)
        values.clone()[torch.tensor([1])]
        values.index_select(0, torch.tensor([0]))


@torch.inference_mode()
def test_the_stand_in_forgets_what_the_host_said_and_what_others_computed() -> None:
    """A stand-in that called Python again, or kept results apart, would prove nothing."""
    factor, source = 2.0, torch.ones(3)
    capture = RecordedCapture()
    first = capture(lambda: (source * factor,))
    second = capture(lambda: (source + 1,))
    factor = 100.0
    source.fill_(3.0)
    (left,) = first()
    assert left.tolist() == [6.0] * 3
    (right,) = second()
    assert right.tolist() == [4.0] * 3
    assert bool(left.isnan().all())


def test_what_is_captured_by_cuda_shares_a_pool_while_any_of_it_lives(cuda: FakeCuda) -> None:
    capture = CudaCapture(CPU)
    streams: list[object] = []

    def run() -> tuple[torch.Tensor]:
        streams.append(cuda.current)
        return (torch.ones(2),)

    replays = [capture(run), capture(run)]
    assert [pool for pool, *_ in cuda.captured] == [1, 1]
    assert {mode for _, mode, _ in cuda.captured} == {"thread_local"}
    assert len(streams) == 6, "two runs to warm up, one that is captured"
    assert set(streams) == {capture._stream}, "all on the stream of the capture"
    assert replays[0]()[0].tolist() == [1.0, 1.0]
    replays.clear()
    kept = capture(run)
    assert [pool for pool, *_ in cuda.captured] == [1, 1, 2]
    assert kept is not None


def test_a_broken_capture_is_the_last_and_leaves_the_stream_alone(cuda: FakeCuda) -> None:
    capture, main = CudaCapture(CPU), cuda.current
    cuda.breaks = True
    for _ in range(2):
        with pytest.raises(CaptureFailed):
            capture(lambda: (torch.ones(2),))
        assert cuda.current is main
    assert cuda.reserved == 100, "the second was not tried"


def test_what_reads_on_the_host_is_not_even_captured(cuda: FakeCuda) -> None:
    capture = CudaCapture(CPU)
    with pytest.raises(Unrecordable):
        capture(lambda: (torch.full((2,), float(torch.ones(1).sum().item())),))
    assert cuda.reserved == 0
    assert len(cuda.captured) == 0
    assert capture(lambda: (torch.ones(2),))()[0].tolist() == [1.0, 1.0]


def test_cuda_graphs_are_for_nvidias_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert graph_captures(CPU) is None
    device = torch.device("cuda:0")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert graph_captures(device) is None
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert graph_captures(device) is not None


def test_doctor_tries_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_graphs().status == "ok"
    assert "none" in doctor.check_graphs().detail or torch.cuda.is_available()
    monkeypatch.setattr(
        "eagle_core.kernels.cuda_graphs.graph_captures", lambda _: lambda: RecordedCapture()
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    check = doctor.check_graphs()
    assert (check.status, check.hint) == ("ok", "")
    assert "captured" in check.detail

    def no_capture() -> RecordedCapture:
        raise CaptureFailed("not today")

    monkeypatch.setattr("eagle_core.kernels.cuda_graphs.graph_captures", lambda _: no_capture)
    check = doctor.check_graphs()
    assert check.status == "warn"
    assert "--cuda-graphs" in check.hint


def test_graphs_are_a_setting() -> None:
    assert not LoadConfig().cuda_graphs  # until they have run on a GPU
    assert LoadConfig(cuda_graphs=True).cuda_graphs


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_real_gpu(dtype: torch.dtype) -> None:
    device = torch.device("cuda")
    model = tiny_model("llama", dtype=dtype).to(device)
    graphed, plain = Target(model), Target(model)
    for target in (graphed, plain):
        target.set_reproducible(False)
    graphed.use_graphs(graph_captures(device))
    caches = [target.new_cache(400) for target in (graphed, plain)]
    prompt = torch.arange(9, device=device)
    for target, cache in zip((graphed, plain), caches, strict=True):
        target.prefill_chunk(prompt, cache)
    for _ in range(30):
        for n_nodes in (1, 5, 20, 60):
            tree = bushy(torch.randint(VOCABULARY, (n_nodes,)))
            found, wanted = (
                target.forward_tree(tree, cache).logits
                for target, cache in zip((graphed, plain), caches, strict=True)
            )
            assert agree(wanted, found, graphs.TOLERANCES.get(dtype, graphs.COARSE_TOLERANCE))
        for cache in caches:
            cache.keep((0, 1, 3))
    assert graphed.graphs is not None
    assert graphed.graphs.n_replayed() >= 4
