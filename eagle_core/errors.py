"""Every error a user can meet: what happened, what was expected, and what to do about it.

EagleError
  ConfigError                  a setting or an argument is wrong
  ModelError                   the base model or the head cannot be used
    ModelNotFound              no such Hub id, folder or file
    DownloadError              a download failed; nothing half-written counts as a model
      NoNetwork                the Hub cannot be reached
      RateLimited              the Hub wants fewer requests for a while
    GatedRepo                  the Hub wants an accepted licence and a token
    BadToken                   the Hub does not know the token
    IncompatibleHead           the head does not fit the base
    CheckpointMismatch         a file's content is not what it should be
    NoChatTemplate             the tokenizer cannot format a chat
  ResourceError                the machine has too little of something
    OutOfMemory  ContextOverflow  DiskFull
  HistoryError                 the kept conversations cannot be read or written
    StaleConversation          another tab or window changed the conversation first
  DraftError                   a drafter broke its contract
  EngineStopped                the process that holds the model ended
  Cancelled                    the user stopped the work
"""

from __future__ import annotations


class EagleError(Exception):
    """Base of the tree. ``str(error)`` is one sentence; ``hint`` is the next step for the user."""

    code = "error"

    def __init__(self, message: str, *, expected: str = "", got: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.expected = expected
        self.got = got
        self.hint = hint

    @property
    def comparison(self) -> str:
        """What was expected and what was there instead; "" where neither is known."""
        if self.expected:
            return f"expected {self.expected}; got {self.got or 'nothing'}"
        return self.got

    @property
    def what(self) -> str:
        """The message with what was expected and got, without the hint."""
        return f"{self.message} ({self.comparison})" if self.comparison else self.message

    def __str__(self) -> str:
        return f"{self.what}. {self.hint}" if self.hint else self.what


class ConfigError(EagleError):
    """A setting or an argument is wrong."""

    code = "bad-config"


class ModelError(EagleError):
    """The base model or the head cannot be used."""

    code = "model"


class ModelNotFound(ModelError):
    """No such Hub id, folder or file."""

    code = "model-not-found"


class DownloadError(ModelError):
    """A download failed; nothing half-written counts as a model."""

    code = "download"


class NoNetwork(DownloadError):
    """The Hub cannot be reached."""

    code = "no-network"


class RateLimited(DownloadError):
    """The Hub wants fewer requests for a while."""

    code = "rate-limited"


class GatedRepo(ModelError):
    """The Hub wants an accepted licence and a token."""

    code = "gated-repo"


class BadToken(ModelError):
    """The Hub does not know the token."""

    code = "bad-token"


class IncompatibleHead(ModelError):
    """The head does not fit the base."""

    code = "incompatible-head"


class CheckpointMismatch(ModelError):
    """A file's content is not what it should be."""

    code = "checkpoint-mismatch"


class NoChatTemplate(ModelError):
    """The tokenizer cannot format a chat."""

    code = "no-chat-template"


class ResourceError(EagleError):
    """The machine has too little of something."""

    code = "resource"


class OutOfMemory(ResourceError):
    """Not enough memory on the device."""

    code = "out-of-memory"


class ContextOverflow(ResourceError):
    """The prompt leaves no room in the model's context."""

    code = "context-overflow"


class DiskFull(ResourceError):
    """Not enough disk space."""

    code = "disk-full"


class HistoryError(EagleError):
    """The kept conversations cannot be read or written."""

    code = "history"


class StaleConversation(HistoryError):
    """Another tab or window changed the conversation first."""

    code = "stale-conversation"


class DraftError(EagleError):
    """A drafter broke its contract."""

    code = "draft"


class EngineStopped(EagleError):
    """The process that holds the model ended."""

    code = "engine-stopped"


class Cancelled(EagleError):
    """The user stopped the work."""

    code = "cancelled"


__all__ = [
    "BadToken",
    "Cancelled",
    "CheckpointMismatch",
    "ConfigError",
    "ContextOverflow",
    "DiskFull",
    "DownloadError",
    "DraftError",
    "EagleError",
    "EngineStopped",
    "GatedRepo",
    "HistoryError",
    "IncompatibleHead",
    "ModelError",
    "ModelNotFound",
    "NoChatTemplate",
    "NoNetwork",
    "OutOfMemory",
    "RateLimited",
    "ResourceError",
    "StaleConversation",
]
