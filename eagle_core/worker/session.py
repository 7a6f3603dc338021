"""The page's side: a session whose model lives in another process. Imports no torch.

A process that ended, killed for its memory say, is told as an error of the request; the next request starts
another one.
"""

from __future__ import annotations

import itertools
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from eagle_core.config import DraftConfig, GenerationConfig, LoadConfig
from eagle_core.differences import Difference
from eagle_core.errors import EagleError, EngineStopped, OutOfMemory
from eagle_core.events import Event, Failed, LoadProgress
from eagle_core.fit import Machine
from eagle_core.session_info import Message, SessionInfo
from eagle_core.startup import child_environment
from eagle_core.worker.channel import Call, Channel, Done, Item, Refused, Reply, Stop

logger = logging.getLogger(__name__)

POLL_S = 0.05  # how soon a request to stop is passed on
PATIENCE_S = 5.0  # for a process that was told to end
KILLED = -9


class Worker:
    """A process with the engine. It starts importing at once, and ends with this one.

    Args: command: what is started instead, for tests.
    """

    def __init__(self, command: Sequence[str] | None = None) -> None:
        self._process = subprocess.Popen(
            command or [sys.executable, "-m", "eagle_core.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._channel = Channel(self._process.stdout, self._process.stdin)  # type: ignore[arg-type]
        self._replies: dict[int, SimpleQueue[Reply]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._has_ended = False
        self._is_closing = False
        self._reader = threading.Thread(target=self._read, name="worker", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it takes no call any more."""
        return self._has_ended

    def call(
        self, method: str, *arguments: Any, cancel: threading.Event | None = None
    ) -> Generator[Item, None, Done]:
        """Ask for something: yields what comes, and returns how it ended.

        Args: cancel: is passed on once it is set. Closing the generator early ends the call, too.
        Raises: EagleError as the session does; EngineStopped or OutOfMemory when the process ends meanwhile.
        """
        number, replies = next(self._numbers), SimpleQueue[Reply]()
        with self._lock:
            if self._has_ended:
                raise self.problem()
            self._replies[number] = replies
        is_over = is_told = False
        try:
            self._say(Call(number, method, arguments))
            while True:
                if not is_told and cancel is not None and cancel.is_set():
                    is_told = True
                    self._say(Stop(number))
                try:
                    waits = None if cancel is None or is_told else POLL_S
                    reply = replies.get(timeout=waits)
                except Empty:
                    continue
                if isinstance(reply, Item):
                    yield reply
                    continue
                is_over = True
                if isinstance(reply, Refused):
                    raise reply.error
                return reply
        finally:
            with self._lock:
                self._replies.pop(number, None)
            if not is_over:
                self._say(Stop(number))

    def close(self) -> None:
        """End the process. Twice does no harm."""
        self._is_closing = True
        self._channel.close_writer()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def problem(self) -> EagleError:
        """Why the process takes no more calls."""
        code = self._process.wait()
        if code == KILLED and not self._is_closing:
            return OutOfMemory(
                "the system ended the model's process, as a rule because memory ran out",
                hint="close other programs, or choose a smaller model or precision; "
                "the next message starts it again",
            )
        return EngineStopped(
            "the model's process ended",
            got=f"exit code {code}",
            hint="send the message again: that starts it anew; the log has the details",
        )

    def _say(self, message: Call | Stop) -> None:
        try:
            self._channel.send(message)
        except (OSError, ValueError):  # gone: the reader tells every open call
            logger.debug("the worker does not listen any more")

    def _read(self) -> None:
        try:
            while True:
                reply = self._channel.receive()
                with self._lock:
                    replies = self._replies.get(reply.number)
                if replies is not None:
                    replies.put(reply)
        except (EOFError, OSError, ValueError):
            logger.debug("the worker has ended")
        with self._lock:
            self._has_ended = True
            left = dict(self._replies)
        if left:
            error = self.problem()
            for number, replies in left.items():
                replies.put(Refused(number, error))


def open_in_worker(
    config: LoadConfig, on_event: Callable[[Event], None], worker: Worker | None = None
) -> WorkerSession:
    """A session in a process of its own.

    Args: worker: a process that was started before, for nothing else.
    Raises: what Session.open raises; the process is ended then.
    """
    if worker is None or worker.has_ended:
        on_event(LoadProgress("starting the engine"))
        worker = Worker()
    return WorkerSession(config, worker, on_event)


class WorkerSession:
    """The app's session, its model in a process of its own.

    Args:
        config: what is opened.
        worker: opens it; ended by :meth:`close`, or when opening fails.
        on_event: gets DownloadProgress and LoadProgress.
        start: starts another process when that one has ended.
    """

    def __init__(
        self,
        config: LoadConfig,
        worker: Worker,
        on_event: Callable[[Event], None],
        start: Callable[[], Worker] = Worker,
    ) -> None:
        self._config, self._worker, self._start = config, worker, start
        self._texts: dict[int, str] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._template: str | None = None
        self.info: SessionInfo = self._open(worker, on_event)

    def chat(
        self,
        messages: Sequence[Message],
        generation: GenerationConfig,
        draft: DraftConfig,
        *,
        cancel: threading.Event | None = None,
    ) -> Iterator[Event]:
        """Events of one answer, as Session.chat gives them; never raises."""
        try:
            call = self._live().call("chat", list(messages), generation, draft, cancel=cancel)
            yield from self._events(call)
        except EagleError as error:
            yield Failed.of(error)

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Tokens of a chat in the model's own template."""
        return int(self._ask("count_tokens", list(messages)))

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a chat in the model's own template."""
        return list(self._ask("encode_chat", list(messages)))

    def token_text(self, token_id: int) -> str:
        """Printable form of one token; those of answers came with them."""
        if token_id not in self._texts:
            self._texts[token_id] = str(self._ask("token_text", token_id))
        return self._texts[token_id]

    def explain_difference(
        self,
        prompt_ids: Sequence[int],
        plain: Sequence[int],
        drafted: Sequence[int],
        generation: GenerationConfig,
    ) -> Difference | None:
        """Where two answers part, and why."""
        found = self._ask(
            "explain_difference", list(prompt_ids), list(plain), list(drafted), generation
        )
        assert found is None or isinstance(found, Difference)
        return found

    def machine(self, device: str | None = None) -> Machine:
        """The machine as a model would find it now; the engine looks, so that this process needs no torch."""
        found = self._ask("machine", device)
        assert isinstance(found, Machine)
        return found

    def forget(self) -> None:
        """Drop the cached prompt."""
        self._ask("forget")

    def set_reproducible(self, is_on: bool) -> None:
        """Compute rows alike alone and beside others, or not."""
        self._ask("set_reproducible", is_on)

    def use_template(self, name: str) -> None:
        """Chat by another template from now on."""
        self._ask("use_template", name)
        self._template = name

    def close(self) -> None:
        """Free the model: its process ends."""
        with self._lock:
            self._is_closed = True
            self._worker.close()

    def _open(self, worker: Worker, on_event: Callable[[Event], None]) -> SessionInfo:
        try:
            call = worker.call("open", self._config)
            while True:
                try:
                    on_event(next(call).value)
                except StopIteration as end:
                    info = end.value.info
                    assert isinstance(info, SessionInfo)
                    return info
        except BaseException:
            worker.close()
            raise

    def _live(self) -> Worker:
        """The process; another one if it has ended. Raises: as opening does."""
        with self._lock:
            if self._worker.has_ended and not self._is_closed:
                logger.warning("the model's process had ended and is started again")
                self._worker.close()
                is_reproducible = self.info.reproducible
                worker = self._start()
                self._worker, self.info = worker, self._open(worker, lambda _: None)
                if self._template is not None:
                    self._end_of(worker.call("use_template", self._template))
                if self.info.reproducible != is_reproducible:
                    self._end_of(worker.call("set_reproducible", is_reproducible))
            return self._worker

    def _ask(self, method: str, *arguments: Any) -> Any:
        """One call that has no items. Raises: as the session does."""
        return self._end_of(self._live().call(method, *arguments)).value

    def _end_of(self, call: Generator[Item, None, Done]) -> Done:
        try:
            next(call)
        except StopIteration as end:
            done: Done = end.value
            if done.info is not None:
                self.info = done.info
            return done
        raise AssertionError("a call with items")

    def _events(self, call: Generator[Item, None, Done]) -> Iterator[Event]:
        """The events of a call, with their tokens' texts kept."""
        try:
            for item in call:
                self._texts.update(item.spelled)
                yield item.value
        finally:
            call.close()


__all__ = ["Worker", "WorkerSession", "open_in_worker"]
