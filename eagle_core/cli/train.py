"""``eagle-chat train``: collect data, fit a head, measure it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle_core.bench.acceptance import measure_acceptance, summarize_acceptance
from eagle_core.bench.prompts import evenly_spaced, load_questions
from eagle_core.cli.console import note, write_json, write_line
from eagle_core.cli.flags import add_config_flags, positive, read_config, read_draft_config
from eagle_core.cli.stream import Progress, open_session
from eagle_core.config import DraftConfig, GenerationConfig, LoadConfig, TreeConfig
from eagle_core.errors import ConfigError
from eagle_core.events import TrainStep
from eagle_core.outputs import check_folder
from eagle_core.train.config import CollectConfig, FitConfig
from eagle_core.train.texts import read_openings, read_talks

if TYPE_CHECKING:
    from eagle_core.heads.families import HeadConfig
    from eagle_core.session import Message, Session
    from eagle_core.train.dataset import Conversations
    from eagle_core.train.fit import Trainer

Make = Callable[["Session", Progress], "Conversations"]


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``train collect``, ``train fit`` and ``train eval``."""
    train = subparsers.add_parser(
        "train", help="make a head", description="Make a head for a base model."
    )
    actions = train.add_subparsers(dest="action", required=True, metavar="action")

    collect = actions.add_parser(
        "collect", allow_abbrev=False, help="conversations and the base's features for them",
        description="Collect conversations (self-written unless a file is given) and extract features.",
    )  # fmt: skip
    source = collect.add_mutually_exclusive_group()
    source.add_argument(
        "--conversations", metavar="FILE", help='JSON lines, each {"messages": [...]}'
    )
    source.add_argument(
        "--token-ids", metavar="FILE", nargs="+", help="conversation sets collected before (.npz)"
    )
    collect.add_argument(
        "--texts",
        metavar="FILE",
        help="a conversation set whose answers --text-share takes texts from",
    )
    collect.add_argument(
        "--openings", metavar="FILE", help="first words of self-written user turns, one per line"
    )
    collect.add_argument("--out", required=True, metavar="FOLDER", help="where the data goes")
    collect.add_argument("--json", action="store_true", help="the outcome as one JSON object")
    add_config_flags(collect, CollectConfig, LoadConfig)
    collect.set_defaults(run=run_collect)

    fit = actions.add_parser(
        "fit", allow_abbrev=False, help="train a head on collected data",
        description="Train a head; run it again after a kill and it goes on from its last checkpoint.",
    )  # fmt: skip
    fit.add_argument("--data", required=True, metavar="FOLDER", help="what `train collect` wrote")
    fit.add_argument("--out", required=True, metavar="FOLDER", help="where the head goes")
    fit.add_argument("--init", metavar="FOLDER", help="a trained head to start from")
    fit.add_argument("--json", action="store_true", help="the outcome as one JSON object")
    add_config_flags(fit, FitConfig, LoadConfig)
    fit.set_defaults(run=run_fit)

    measure = actions.add_parser(
        "eval", allow_abbrev=False, help="tau and acceptance per depth on questions",
        description="Answer questions and report how much of the drafts was accepted.",
    )  # fmt: skip
    measure.add_argument("--prompts", required=True, metavar="FILE", help="questions, JSON lines")
    measure.add_argument(
        "--limit", type=positive, metavar="N", help="only N of them, evenly spaced"
    )
    measure.add_argument("--json", action="store_true", help="the figures as one JSON object")
    add_config_flags(measure, LoadConfig, GenerationConfig, DraftConfig, TreeConfig)
    measure.set_defaults(run=run_eval)


def run_collect(args: argparse.Namespace) -> int:
    """Write ``conversations.npz`` and feature shards.

    Raises: EagleError.
    """
    config, load = read_config(args, CollectConfig), read_config(args, LoadConfig)
    from eagle_core.sources import check_load

    out = Path(args.out)
    check_folder(out)
    check_load(load)
    make = _conversations(args, config, out)  # reads its files before the model is loaded
    progress = Progress()
    session = open_session(load, progress)
    from eagle_core.heads.eagle3 import default_feature_layers
    from eagle_core.train.dataset import CONVERSATIONS_NAME, extract_features

    conversations = make(session, progress)
    conversations.save(out / CONVERSATIONS_NAME)
    target = session.target
    layers = default_feature_layers(target.n_layers) if config.arch == "eagle3" else ()
    shards = extract_features(
        conversations, out, lambda ids: target.batch_features(ids, layers),
        base=session.info.base, layers=layers, seed=config.seed,
    )  # fmt: skip
    for done, total in shards:
        progress.count("extracting features", done, total, unit=" shards")
    progress.close()
    outcome = {
        "out": str(out),
        "n_conversations": len(conversations),
        "n_tokens": int(conversations.offsets[-1]),
        "n_response_tokens": conversations.n_response_tokens,
    }
    if args.json:
        write_json(outcome)
    else:
        write_line(
            f"{len(conversations)} conversations, {outcome['n_response_tokens']} answer tokens in {out}"
        )
    return 0


def _conversations(args: argparse.Namespace, config: CollectConfig, out: Path) -> Make:
    """How the conversations are made; the files they are made from are read now.

    Raises: ConfigError.
    """
    if args.token_ids is not None:
        from eagle_core.train.dataset import Conversations

        sets = [Conversations.load(Path(path)) for path in args.token_ids]
        return lambda *_: _join(sets)
    if args.conversations is not None:
        talks = read_talks(Path(args.conversations))
        return lambda session, _: _encode(session, talks, config)
    openings = None if args.openings is None else read_openings(Path(args.openings))
    texts = None
    if args.texts is not None:
        from eagle_core.train.dataset import Conversations

        texts = Conversations.load(Path(args.texts))
    return lambda session, progress: _write(session, progress, config, out, texts, openings)


def _join(sets: list[Conversations]) -> Conversations:
    from eagle_core.train.collect import join_sets

    return join_sets(sets)


def _encode(
    session: Session, talks: Sequence[Sequence[Message]], config: CollectConfig
) -> Conversations:
    from eagle_core.train.collect import encode_talks

    return encode_talks(session, talks, config)


def _write(
    session: Session,
    progress: Progress,
    config: CollectConfig,
    out: Path,
    texts: Conversations | None,
    openings: Sequence[str] | None,
) -> Conversations:
    from eagle_core.train.collect import OPENINGS, join_parts, write_conversations

    # A batch takes a minute and more; nobody should have to guess whether it runs.
    progress.count("writing conversations", 0, config.n_tokens, unit=" tokens")
    for step in write_conversations(
        session, config, out / "parts", texts=texts, openings=openings or OPENINGS
    ):
        progress.count("writing conversations", step.done, step.total, unit=" tokens")
    return join_parts(out / "parts")


def run_fit(args: argparse.Namespace) -> int:
    """Train, with a progress bar; writes the head, ``history.jsonl`` and ``training.png``.

    Raises: EagleError.
    """
    config, load = read_config(args, FitConfig), read_config(args, LoadConfig)
    from eagle_core.sources import CONFIG_NAME, check_load, read_json

    out = Path(args.out)
    check_folder(out)
    check_load(load)
    if args.init is not None:
        read_json(Path(args.init) / CONFIG_NAME)
    from eagle_core.train.dataset import FeatureFolder

    data = FeatureFolder(Path(args.data))
    check_base(data.meta, load.base)
    from tqdm import tqdm

    from eagle_core.loading import load_base
    from eagle_core.loading_head import read_head, shape_of
    from eagle_core.train.fit import Trainer
    from eagle_core.train.plot import write_training_plot

    base = load_base(load, Progress())
    check_base(data.meta, load.base, base.model.config.get_text_config().hidden_size)
    model: Any = base.model
    embedding, lm_head = model.get_input_embeddings(), model.get_output_embeddings()
    vocab_size = int(lm_head.weight.shape[0])
    if config.draft_vocab_size > vocab_size:
        raise ConfigError(
            "draft_vocab_size is larger than the vocabulary",
            expected=f"at most {vocab_size}", got=str(config.draft_vocab_size), hint="0 scores every token",
        )  # fmt: skip
    shape = head_shape(config, model.config.get_text_config(), data.feature_layers)
    norm = getattr(getattr(model.get_decoder(), "norm", None), "weight", None)
    init = read_head(Path(args.init), shape_of(base.model)) if args.init is not None else None
    trainer = Trainer(
        shape, embedding.weight.detach(), lm_head.weight.detach(), data, out, config, init,
        norm.detach() if norm is not None else None,
    )  # fmt: skip
    if trainer.progress.step:
        note(f"going on from step {trainer.progress.step}")
    with tqdm(
        total=1.0, unit="run", bar_format="{desc} {percentage:3.0f}%|{bar}| ETA {remaining}"
    ) as bar:
        for event in trainer.run():
            bar.update(trainer.share_done() - bar.n)
            bar.set_description(f"step {event.step} loss {event.loss:.3f}")
            if event.acceptance:
                tqdm.write(_acceptance_line(event), file=bar.fp)
    write_training_plot(trainer.progress.history, out / "training.png", config)
    _tell(trainer, out, as_json=args.json)
    return 0


def _tell(trainer: Trainer, out: Path, *, as_json: bool) -> None:
    """Keep the history of a training that ended, and say how good the head is."""
    history = trainer.progress.history
    _write_history(history, out / "history.jsonl")
    acceptance = next((row["acceptance"] for row in reversed(history) if row["acceptance"]), ())
    outcome = {
        "out": str(out),
        "n_steps": trainer.progress.step,
        "acceptance_at_depth": list(acceptance),
    }
    if as_json:
        write_json(outcome)
    else:
        write_line(f"head in {out}, held-out agreement {_rates(acceptance)}")


def head_shape(config: FitConfig, base: Any, feature_layers: tuple[int, ...]) -> HeadConfig:
    """The shapes of the head to train for ``base`` (a transformers text config).

    Raises: ConfigError when the data lacks what the head is made of.
    """
    from eagle_core.heads.eagle1 import config_for_base
    from eagle_core.heads.families import eagle3_for_base

    n_layers, n_scored = config.n_layers, config.draft_vocab_size
    if config.arch == "eagle1":
        return config_for_base(base, n_layers=n_layers, draft_vocab_size=n_scored)
    if not feature_layers:
        raise ConfigError(
            "the data holds no states of layers, which an EAGLE-3 head fuses",
            expected="data collected for eagle3",
            got="features after the last layer only",
            hint="run `eagle-chat train collect --arch eagle3`; --token-ids takes the conversations over",
        )
    return eagle3_for_base(
        base, feature_layers, n_layers=n_layers, draft_vocab_size=n_scored, fc_norm=config.feature_norm
    )  # fmt: skip


def check_base(meta: dict[str, Any], base: str, hidden_size: int | None = None) -> None:
    """Features are of use for the base that made them only.

    Args: hidden_size: of the loaded base; None: not loaded yet.
    Raises: ConfigError when they are another's.
    """
    of_data = meta.get("hidden_size", hidden_size)
    if meta.get("base") != base or hidden_size not in (None, of_data):
        raise ConfigError(
            "the data was collected with another base model",
            expected=str(meta.get("base")),
            got=base,
            hint="name that one with --base, or collect anew",
        )


def _acceptance_line(event: TrainStep) -> str:
    return f"step {event.step}: held-out agreement by depth {_rates(event.acceptance)}"


def _rates(rates: Any) -> str:
    return " / ".join(f"{rate:.3f}" for rate in rates) or "not measured"


def _write_history(history: list[dict[str, Any]], path: Path) -> None:
    part = path.with_suffix(".part")
    part.write_text("".join(json.dumps(row) + "\n" for row in history))
    os.replace(part, path)


def run_eval(args: argparse.Namespace) -> int:
    """Measure acceptance on a file of questions.

    Returns: 0, or 1 when an answer failed.
    Raises: EagleError.
    """
    generation, draft = read_config(args, GenerationConfig), read_draft_config(args)
    load = read_config(args, LoadConfig)
    questions = evenly_spaced(load_questions(Path(args.prompts)), args.limit)
    progress = Progress()
    session = open_session(load, progress)
    rows = []
    for row in measure_acceptance(session, questions, generation, draft):
        rows.append(row)
        progress.count("answering", len(rows), len(questions), unit=" questions")
    progress.close()
    summary = summarize_acceptance(rows)
    if args.json:
        write_json(summary)
    else:
        tau = summary["tau_mean"]
        write_line(
            f"tau {tau:.3f} over {summary['n_answers']} answers" if tau else "no answer took a step"
        )
        write_line(f"acceptance by depth {_rates(summary['acceptance_at_depth'])}")
        for category, value in summary["tau_by_category"].items():
            write_line(f"  {category:24} {value:.3f}")
    return 1 if summary["n_failed"] else 0


__all__ = ["add_parser"]
