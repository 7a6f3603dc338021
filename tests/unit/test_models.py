"""What can be done with a pair without loading it, and ``eagle-chat models`` on top of it."""

from __future__ import annotations

import dataclasses
import io
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle_core import catalog, default_model, hub, machine, models, own_models
from eagle_core.catalog import CatalogEntry, HubSource
from eagle_core.cli import main
from eagle_core.errors import ConfigError, ModelNotFound, NoNetwork
from eagle_core.events import DownloadProgress, Event, LoadProgress
from eagle_core.fit import Machine
from eagle_core.rate import Rate, as_text
from tests.support.hub_server import COMMIT, HubServer, Repo
from tests.support.loopback import Files, serving, tiny_pair
from tests.support.tiny_models import save_llama

Run = Callable[..., tuple[int, Any, str]]
GB = 1_000_000_000


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return tiny_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def server(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub with a tiny pair, and a machine with 8 GB free."""
    monkeypatch.setenv("EAGLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        machine, "this_machine", lambda device: Machine("cpu", 8 * GB, 8 * GB, "processor")
    )
    with serving(files, tmp_path, monkeypatch) as server:
        yield server


@pytest.fixture
def pair() -> CatalogEntry:
    return CatalogEntry("pair", "Pair", HubSource("org/base"), "org/head", None, "MIT")


@pytest.fixture
def run(server: HubServer, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``eagle-chat models`` with --json: exit code, the object, stderr."""

    def run_command(*arguments: object) -> tuple[int, Any, str]:
        capsys.readouterr()
        code = main(["models", *map(str, arguments), "--json"])
        captured = capsys.readouterr()
        lines = captured.out.rstrip("\n").split("\n")
        return code, json.loads(lines[-1]) if lines[-1] else None, captured.err

    return run_command


# --- fetching and removing


def test_pull_fetches_head_and_base(server: HubServer, pair: CatalogEntry) -> None:
    assert not models.is_here(pair)
    events: list[Event] = []
    base, head = models.pull(pair, events.append)
    assert models.is_here(pair)
    assert (base.commit, head.commit) == (COMMIT, COMMIT)
    assert base.n_bytes > head.n_bytes > 0
    order = [event.what for event in events if isinstance(event, DownloadProgress)]
    assert order == sorted(order, reverse=True), "org/head, which is small, before org/base"
    server.close()
    assert models.pull(pair) == (base, head), "what is here needs no Hub"


def test_a_refused_head_costs_no_base(server: HubServer, pair: CatalogEntry) -> None:
    del server.repos["org/head"]
    with pytest.raises(ModelNotFound, match="org/head"):
        models.pull(pair)
    assert server.n_transfers.total() == 0


def test_stopping_the_default_models_download(
    monkeypatch: pytest.MonkeyPatch, server: HubServer
) -> None:
    cancel = threading.Event()
    seen: list[Event] = []

    def fetch(entry: CatalogEntry, on_event: Callable[[Event], None]) -> None:
        on_event(LoadProgress("one"))
        cancel.set()
        on_event(LoadProgress("two"))

    monkeypatch.setattr(models, "fetch_default_model", fetch)
    with pytest.raises(models.Cancelled):
        models.pull(catalog.default_entry(), seen.append, cancel)
    assert seen == [LoadProgress("one")]


def test_remove_keeps_what_another_pair_here_uses(server: HubServer, pair: CatalogEntry) -> None:
    server.repos["org/second"] = Repo(dict(server.repos["org/head"].files))
    own_models.add({"name": "other", "base": "org/base", "head": "org/second"})
    models.pull(pair)
    models.pull(catalog.find("other"))
    removed = models.remove(pair)
    assert removed.names == ("org/head",)
    assert removed.kept == ("org/base",)
    assert set(hub.cached_repos()) == {"org/base", "org/second"}
    removed = models.remove(catalog.find("other"))
    assert set(removed.names) == {"org/base", "org/second"}
    assert hub.cached_repos() == {}


def test_the_default_model_is_removed_from_the_cache_of_converted_ones(server: HubServer) -> None:
    entry = catalog.default_entry()
    assert isinstance(entry.source, catalog.WheelSource)
    folder = default_model.converted_folder(entry.name, entry.source)
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"x" * 1000)
    removed = models.remove(entry)
    assert (removed.names, removed.n_bytes) == ((entry.name,), 1000)
    assert not folder.exists()
    assert models.remove(entry).names == ()
    assert models.parts_of(entry)[1].is_here, "the bundled head stays"


def test_folders_of_the_users_stay(server: HubServer, tmp_path: Path) -> None:
    folder = save_llama(tmp_path / "model")
    entry = models.resolve(str(folder))
    assert models.is_here(entry)
    models.pull(entry)
    assert models.remove(entry).names == ()
    assert folder.is_dir()
    with pytest.raises(ModelNotFound, match="does not exist"):
        models.pull(dataclasses.replace(entry, source=catalog.LocalSource(str(tmp_path / "none"))))


@pytest.mark.parametrize(
    ("name", "match"), [("qwen3", "did you mean qwen3-"), ("./none/here", "does not exist")]
)
def test_what_is_no_model_is_said(server: HubServer, name: str, match: str) -> None:
    with pytest.raises(ModelNotFound, match=match):
        models.resolve(name)
    with pytest.raises(ModelNotFound, match="does not exist"):
        models.resolve("smollm2-135m", "./none/here")


# --- measuring


def test_a_pair_is_measured_before_it_is_fetched(server: HubServer, pair: CatalogEntry) -> None:
    measured = models.measure(pair)
    assert measured.is_read
    assert measured.head is not None
    assert measured.base.n_layers == 2
    sizes = {repo: sum(map(len, content.files.values())) for repo, content in server.repos.items()}
    assert measured.download_bytes is not None
    assert 0 < measured.download_bytes <= sum(sizes.values())
    assert all(part.commit is None for part in models.parts_of(pair))
    found = models.fit(pair, measured, Machine("cpu", 8 * GB, 8 * GB))
    assert found.verdict == "fits"
    models.pull(pair)
    n_requests = len(server.log)
    offline = models.measure(pair, offline=True)
    assert (offline.base, offline.head) == (measured.base, measured.head)
    assert len(server.log) == n_requests


def test_what_cannot_be_read_is_taken_from_the_catalogue(server: HubServer) -> None:
    measured = models.measure(catalog.find("qwen3-4b"))  # this Hub has no such repository
    assert not measured.is_read
    assert "Qwen/Qwen3-4B" in measured.note
    assert measured.base == catalog.find("qwen3-4b").size


def test_a_file_that_is_stored_quantized_is_not_counted(server: HubServer) -> None:
    files = server.repos["org/base"].files
    config = json.loads(files["config.json"]) | {"quantization_config": {"quant_method": "mxfp4"}}
    files["config.json"] = json.dumps(config).encode()
    with pytest.raises(ConfigError, match="stored quantized"):
        models.measure(models.resolve("org/base"))
    known = dataclasses.replace(catalog.find("gpt-oss-20b"), source=HubSource("org/base"))
    measured = models.measure(known)
    assert measured.base == known.size
    assert "stored quantized" in measured.note


def test_a_file_with_no_numbers_is_said(server: HubServer, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.touch()
    with pytest.raises(ConfigError, match="not estimated"):
        models.measure(models.resolve(str(path)))


# --- the command line


def test_list_and_show(run: Run) -> None:
    code, found, _ = run("list")
    assert code == 0
    by_name = {row["name"]: row for row in found["models"]}
    assert set(by_name) == set(catalog.names())
    assert by_name["llama-3.1-8b"]["is_gated"]
    assert not by_name["qwen3-4b"]["is_here"]
    code, found, _ = run("show", "qwen3-8b")
    assert code == 0
    assert found["other_heads"]
    assert [part["role"] for part in found["parts"]] == ["base", "head"]


def test_sizes_of_what_is_not_here_are_estimated_or_asked_for(
    run: Run, server: HubServer, pair: CatalogEntry
) -> None:
    by_name = {row["name"]: row for row in run("list")[1]["models"]}
    qwen = by_name["qwen3-4b"]
    assert (qwen["download_bytes"], qwen["is_estimate"]) == (
        2 * (4_022_468_096 + 218_429_056),
        True,
    )
    assert all(row["download_bytes"] > 0 for row in by_name.values())
    assert by_name["gpt-oss-20b"]["download_bytes"] < 20 * GB  # most of it in 4 bits
    assert server.log == []
    known = run("show", "qwen3-8b")[1]
    assert known["is_estimate"]
    assert server.log == []
    measured = models.measure(models.resolve("org/base"))
    asked = run("show", "org/base")[1]
    assert (asked["download_bytes"], asked["is_estimate"]) == (measured.download_bytes, False)
    n_requests = len(server.log)
    assert run("show", "org/base", "--offline")[1]["download_bytes"] is None
    assert len(server.log) == n_requests
    server.repos["org/base"].refuse = 403
    assert run("show", "org/base")[1]["download_bytes"] is None
    server.repos["org/base"].refuse = None
    models.pull(pair)
    assert run("show", "org/base")[1]["download_bytes"] == 0


def test_sizes_for_people(server: HubServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "~8.5 GB" in lines["qwen3-4b"]
    assert main(["models", "show", "qwen3-4b"]) == 0
    assert "~8.5 GB (estimated from the parameters)" in capsys.readouterr().out
    assert main(["models", "show", "org/base"]) == 0
    assert "~" not in capsys.readouterr().out


def test_add_pull_show_fit_rm(run: Run) -> None:
    code, found, _ = run("add", "mine", "--base", "org/base", "--head", "org/head")
    assert code == 0
    assert Path(found["file"]) == catalog.own_file()
    code, found, err = run("pull", "mine")
    assert code == 0
    assert "org/base: 100%" in err
    assert [part["is_here"] for part in found["parts"]] == [True, True]
    assert found["parts"][0]["commit"] == COMMIT
    assert run("show", "mine")[1]["is_here"]
    code, found, _ = run("fit", "mine")
    assert (code, found["verdict"], found["from_files"]) == (0, "fits", True)
    assert found["needed_bytes"] == sum(found["parts"].values())
    code, found, err = run("rm", "mine")
    assert (code, found["error"]["code"]) == (2, "bad-config")
    assert "--yes" in err
    code, found, _ = run("rm", "mine", "--yes")
    assert code == 0
    assert set(found["names"]) == {"org/base", "org/head"}
    assert found["is_forgotten"]
    assert catalog.lookup("mine") is None


def test_fit_without_a_name_proposes(run: Run, server: HubServer) -> None:
    code, found, _ = run("fit")
    assert code == 0
    assert found["is_proposal"]
    assert found["name"] == "qwen3-1.7b"
    assert found["verdict"] == "fits"
    assert server.log == [], "a proposal asks no Hub"


def test_fit_of_what_is_too_large(run: Run) -> None:
    code, found, err = run("fit", "llama-3.3-70b", "--context-length", "4096")
    assert code == 0
    assert found["verdict"] == "too-large"
    assert found["context_length"] == 4096
    assert "catalogue" in err
    code, found, _ = run("fit", "qwen3-4b", "--precision", "float32")
    assert found["precision"] == "float32"


@pytest.mark.parametrize(
    ("arguments", "code", "slug"),
    [
        (("show", "qwen9"), 1, "model-not-found"),
        (("pull", "org/none"), 1, "model-not-found"),
        (("fit", "a", "--base", "b"), 2, "bad-config"),
        (("fit", "--context-length", "0"), 2, "bad-config"),
        (("add", "smollm2-135m", "--base", "org/base"), 1, "bad-config"),
        (("add", "x", "--base", "no-such"), 1, "model-not-found"),
        ((), 2, "bad-config"),
    ],
)
def test_errors_and_exit_codes(run: Run, arguments: tuple[str, ...], code: int, slug: str) -> None:
    found = run(*arguments)
    assert found[0] == code
    assert found[1]["error"]["code"] == slug
    assert found[1]["error"]["hint"]


def test_without_a_network(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    code, found, _ = run("pull", "org/base")
    assert code == 1
    assert found["error"]["code"] == NoNetwork.code


def test_ctrl_c_stops_a_pull_and_the_next_goes_on(run: Run, server: HubServer) -> None:
    weights = server.repos["org/base"].files["model.safetensors"]
    server.repos["org/base"].trickles["model.safetensors"] = (len(weights) // 100, 0.03)

    def press() -> None:
        while server.bytes_sent["model.safetensors"] < len(weights) // 10:
            time.sleep(0.01)
        signal.raise_signal(signal.SIGINT)

    presser = threading.Thread(target=press, daemon=True)
    presser.start()
    code, _, err = run("pull", "org/base")
    presser.join()
    assert code == 130
    assert "go on where it stopped" in err
    server.repos["org/base"].trickles.clear()
    assert run("pull", "org/base")[0] == 0
    asked = server.ranges("model.safetensors")
    assert asked[0] is None
    assert asked[-1] is not None


def test_people_read_lines(
    server: HubServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown(*arguments: str) -> str:
        assert main(["models", *arguments]) == 0
        return capsys.readouterr().out

    assert "qwen3-4b" in shown("list")
    assert "license     Apache-2.0" in shown("show", "qwen3-8b")
    assert "Best for this machine: qwen3-1.7b" in shown("fit")
    assert shown("add", "mine", "--base", "org/base").startswith("mine stands in")
    assert "eagle-chat chat --base mine" in shown("pull", "mine")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert "Remove mine" in shown("rm", "mine")
    assert models.is_here(catalog.find("mine"))
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert "removed org/base" in shown("rm", "mine")
    assert "nothing of qwen3-4b" in shown("rm", "qwen3-4b")


# --- speed and time left


def test_rates() -> None:
    rate = Rate(window_s=10)
    assert rate.per_s is None
    rate.add(0, 0.0)
    assert as_text(rate, 100) == ""
    rate.add(50, 5.0)
    assert rate.per_s == 10
    assert rate.remaining_s(100) == 5
    assert rate.remaining_s(None) is None
    for second in range(6, 30):  # from now on a hundred a second
        rate.add(50 + 100 * (second - 5), float(second))
    assert rate.per_s == 100


@pytest.mark.parametrize(
    ("total", "text"),
    [
        (7_000_000, "1.0 MB/s, 5 s left"),
        (102_000_000, "1.0 MB/s, 1 min 40 s left"),
        (7_202_000_000, "1.0 MB/s, 2 h 0 min left"),
        (None, "1.0 MB/s"),
    ],
)
def test_rates_for_people(total: int | None, text: str) -> None:
    rate = Rate()
    rate.add(0, 0.0)
    rate.add(2_000_000, 2.0)
    assert as_text(rate, total) == text
