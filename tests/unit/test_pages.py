"""Memory that is touched ahead: whoever takes it finds zeros, and what nobody uses goes back."""

from __future__ import annotations

import mmap
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch

from eagle_core import headstart, models, pages
from eagle_core.config import LoadConfig
from eagle_core.headstart import pages_ahead
from eagle_core.kernels.memory import LargePages
from eagle_core.packing import pack_layers
from eagle_core.pages import LARGE_PAGE, PagesAhead
from eagle_core.testing import tiny_model

MB = 1 << 20
needs_pages = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="no large pages here")


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def wait_for(ahead: PagesAhead) -> None:
    """Until all of it is touched."""
    assert ahead._thread is not None
    ahead._thread.join()


@needs_pages
def test_it_is_touched_in_the_background_and_goes_to_the_first_who_asks() -> None:
    before = resident()
    with PagesAhead(64 * MB) as ahead:
        wait_for(ahead)
        assert resident() - before > 60 * MB
        region = ahead.take()
        assert region is not None
        assert len(region) == 64 * MB
        assert not region[:].strip(b"\0")
        assert ahead.take() is None
    region[:3] = b"abc"  # is not taken back
    assert region[:3] == b"abc"


@needs_pages
def test_what_nobody_took_is_given_back() -> None:
    before = resident()
    with PagesAhead(64 * MB) as ahead:
        wait_for(ahead)
    assert ahead.take() is None
    assert resident() - before < 8 * MB


@needs_pages
def test_taking_stops_the_touching(monkeypatch: pytest.MonkeyPatch) -> None:
    touched, goes_on = [], threading.Event()

    def touch(_place: int, _value: int, n_bytes: int) -> None:
        touched.append(n_bytes)
        goes_on.set()
        time.sleep(0.01)

    monkeypatch.setattr(pages.ctypes, "memset", touch)
    with PagesAhead(1 << 30) as ahead:  # not touched, it takes no memory
        assert goes_on.wait(10)
        region = ahead.take()
    assert region is not None
    assert sum(touched) < len(region)


def test_nothing_is_done_for_nothing_or_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with PagesAhead(0) as ahead:
        assert ahead.take() is None

    def refuse(*_arguments: object, **_keywords: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(pages.mmap, "mmap", refuse)
    with PagesAhead(MB) as ahead:
        assert ahead.take() is None


@needs_pages
def test_weights_lie_in_it_first_and_its_rest_goes_back() -> None:
    before = resident()
    with PagesAhead(64 * MB) as ahead:
        wait_for(ahead)
        places = LargePages(ahead)
        first = places.empty(3 * MB)
        first.fill_(7)
        places.give_back_rest()
        assert resident() - before < 16 * MB
        large = places.empty(80 * MB)  # does not fit: a region of its own
        large.fill_(8)
    assert int(first.min()) == int(first.max()) == 7
    assert int(large.min()) == int(large.max()) == 8


@needs_pages
def test_the_widened_embedding_lies_there_too() -> None:
    model = tiny_model().to(torch.bfloat16)
    wanted = model.get_input_embeddings().weight.float()
    with PagesAhead(8 * LARGE_PAGE) as ahead:
        region = ahead._region
        assert region is not None
        begin = torch.frombuffer(region, dtype=torch.uint8).data_ptr()
        pack_layers(model, widens=True, frees=True, ahead=ahead)
    found = model.get_input_embeddings().weight
    assert torch.equal(found, wanted)
    assert begin <= found.data_ptr() < begin + 8 * LARGE_PAGE


@pytest.fixture
def folder(tmp_path: Path) -> str:
    tiny_model().save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def ahead_of(config: LoadConfig) -> int:
    """Bytes that a start with ``config`` touches."""
    asked: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(headstart, "PagesAhead", asked.append)
        pages_ahead(config)
    return asked[0]


def test_its_size_is_that_of_what_will_be_packed(folder: str) -> None:
    size = models.folder_size(Path(folder))
    full, small = (
        ahead_of(LoadConfig(base=folder, device="cpu", quantization=name))  # type: ignore[arg-type]
        for name in ("none", "int8")
    )
    assert full > 4 * size.n_linear  # tiny models are stored in float32
    assert 0 < small < full


@pytest.mark.parametrize(
    "settings",
    [
        {"device": "cuda"},
        {"dtype": "bfloat16"},
        {"quantization": "nf4"},
        {"base": "org/not-here"},
        {"base": "no such model"},
        {"base": "missing.gguf"},
    ],
)
def test_nothing_is_touched_for_what_will_not_be_packed(
    folder: str, settings: dict[str, str]
) -> None:
    assert ahead_of(LoadConfig(**{"base": folder, "device": "cpu", **settings})) == 0  # type: ignore[arg-type]


def test_nothing_is_touched_where_memory_is_short(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LoadConfig(base=folder, device="cpu")
    needed = ahead_of(config)
    monkeypatch.setattr(headstart, "free_ram_bytes", lambda: needed * 3)
    assert ahead_of(config) == 0
