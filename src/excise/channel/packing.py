"""Records as bytes: MessagePack, and what of the seam it has no word for (names that are no text, secrets)."""

from typing import Any, TypeVar

import msgspec

from excise.spec import Secret

T = TypeVar("T")
_NO_TEXT = 1


def packed(record: msgspec.Struct) -> bytes:
    try:
        return _ENCODER.encode(record)
    except UnicodeEncodeError:  # a file's name need not be text
        plain = msgspec.to_builtins(record, builtin_types=(bytes,), enc_hook=_revealed)
        return _ENCODER.encode(_in_bytes(plain))


class Unpacker:
    """From bytes to one of these records; msgspec.DecodeError, or what a record itself refuses, if it is none."""

    def __init__(self, type_: Any) -> None:
        self._type = type_
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(type_, dec_hook=_secret)

    def __call__(self, data: bytes) -> Any:
        try:
            return self._decoder.decode(data)
        except msgspec.ValidationError:
            value = msgspec.msgpack.decode(data, ext_hook=_text)
            return msgspec.convert(value, self._type, dec_hook=_secret)


def _revealed(value: Any) -> Any:
    """A secret crosses to whoever has to hand it to a program, and nowhere else: this is no log and no result."""
    if isinstance(value, Secret):
        return value.reveal()
    raise NotImplementedError(f"a {type(value).__name__} has no record")


def _secret(type_: type, value: Any) -> Any:
    if type_ is Secret and isinstance(value, str):
        return Secret(value)
    raise ValueError(f"no {type_.__name__} is made of this")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_revealed)


def _text(code: int, data: memoryview) -> str:
    if code != _NO_TEXT:
        raise ValueError(f"an extension {code}")
    return bytes(data).decode("utf-8", "surrogateescape")


def _in_bytes(value: Any) -> Any:
    """With each string that is no text as its bytes, marked."""
    match value:
        case str() if any("\ud800" <= character <= "\udfff" for character in value):
            return msgspec.msgpack.Ext(_NO_TEXT, value.encode("utf-8", "surrogateescape"))
        case dict():
            return {_in_bytes(name): _in_bytes(one) for name, one in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list() | tuple():
            return [_in_bytes(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value
