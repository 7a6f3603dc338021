"""The user's access token, kept where the library and ``hf auth login`` keep it and nowhere else.

The file is the user's alone (mode 0600) and is replaced whole. The token stands in no log and no message.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError

from eagle_core.errors import BadToken, ConfigError
from eagle_core.hub.cache import endpoint
from eagle_core.hub.errors import hub_errors

REFUSED = (401, 403)


def has_token() -> bool:
    """Whether a token is there, in the environment or in the library's file."""
    return get_token() is not None


def is_token_from_environment() -> bool:
    """Whether the environment gives the token, which then goes before the file's."""
    return bool(os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN"))


def save_token(text: str) -> str:
    """Ask the Hub whose token it is, and keep it; returns the account's name.

    Raises: ConfigError for what is no token; BadToken when the Hub does not know it, NoNetwork and others
        when it cannot be asked: then nothing is kept.
    """
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            "that is no access token",
            expected="one word, as the Hub's settings page shows it",
            hint="copy it again, without anything around it",
        )
    with hub_errors("your account", None):
        try:
            account = HfApi(endpoint=endpoint()).whoami(token=token)
        except HfHubHTTPError as error:
            if error.response.status_code not in REFUSED:
                raise
            # Not chained: the library's error holds the request, and with it the token.
            raise BadToken(
                "the Hub does not know this token",
                hint="make a new one on the Hub's settings page, with the right to read, and enter that",
            ) from None
    _write(Path(constants.HF_TOKEN_PATH), token)
    return str(account.get("name", "your account"))


def forget_token() -> bool:
    """Remove the kept token; whether there was one.

    Raises: ConfigError when the file cannot be removed.
    """
    try:
        Path(constants.HF_TOKEN_PATH).unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _not_writable(Path(constants.HF_TOKEN_PATH), error) from error
    return True


def _write(path: Path, token: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".token-")  # mode 0600
    except OSError as error:
        raise _not_writable(path, error) from error
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(token)
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary)
        raise _not_writable(path, error) from error


def _not_writable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"the folder {path.parent} cannot be written",
        got=type(error).__name__,
        hint="set HF_HOME to a folder of yours, or give the token as HF_TOKEN",
    )


__all__ = ["forget_token", "has_token", "is_token_from_environment", "save_token"]
