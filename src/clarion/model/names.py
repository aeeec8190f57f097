"""Names are bytes; this is their one text form for JSON, command line, URLs and logs."""

from __future__ import annotations

import base64
import binascii

_PREFIX = "b64:"


def to_bytes(value: bytes | str, what: str = "this") -> bytes:
    """Return the bytes of a name or payload: str is encoded as UTF-8, bytes-likes are copied, else TypeError."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"{what} is a text that is not Unicode, and cannot be encoded as UTF-8: {value!r}"
            ) from None
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"{what} is bytes or str, not {type(value).__name__}")
    return bytes(value)


def to_text(name: bytes) -> str:
    """Give the text form: UTF-8 where that round-trips and prints, else `b64:…`."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        text = ""
    if text.isprintable() and text and not text.startswith(_PREFIX):
        return text
    return _PREFIX + base64.urlsafe_b64encode(name).decode()


def from_text(text: str) -> bytes:
    """Read the text form; a malformed `b64:` is a ValueError."""
    if not text.startswith(_PREFIX):
        return text.encode()
    try:
        return base64.b64decode(text[len(_PREFIX) :].encode(), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text!r} is not valid base64 after 'b64:': {error}") from error
