"""Who we are to a registry: what `docker login` left in the Docker configuration."""

import base64
import binascii
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from excise.errors import SpecError
from excise.storage.oci.reference import HUB

_HELPER_S = 20.0


class Credentials(msgspec.Struct, frozen=True):
    """A user and a password; without a user it is an identity token. Never printed."""

    user: str
    secret: str

    def __repr__(self) -> str:
        return "Credentials(...)"


class _Auth(msgspec.Struct):
    auth: str = ""
    username: str = ""
    password: str = ""
    identitytoken: str = ""


class _Config(msgspec.Struct):
    auths: Mapping[str, _Auth] = {}
    credHelpers: Mapping[str, str] = {}  # noqa: N815 - as the file has it
    credsStore: str = ""  # noqa: N815 - as above


class _Answer(msgspec.Struct):
    Username: str = ""
    Secret: str = ""


def find(registry: str) -> Credentials | None:
    """What the configuration has for `registry`; none is no error, since much is public."""
    config = _read()
    for key in _keys(registry):
        helper = config.credHelpers.get(key) or (config.credsStore if key in config.auths else "")
        if helper and (found := _ask(helper, key)) is not None:
            return found
        if (entry := config.auths.get(key)) is not None and (found := _stored(entry, key)) is not None:
            return found
    return None


def _keys(registry: str) -> tuple[str, ...]:
    """What Docker's configuration may call it."""
    if registry == HUB:
        return f"https://index.{HUB}/v1/", f"index.{HUB}", HUB, f"registry-1.{HUB}"
    return registry, f"https://{registry}", f"http://{registry}", f"https://{registry}/v2/"


def _read() -> _Config:
    home = os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker")  # noqa: PTH111 - no home is no error here
    path = Path(home) / "config.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Config)
    except (FileNotFoundError, NotADirectoryError):
        return _Config()
    except PermissionError:
        raise SpecError(f"{path} cannot be read: permission denied; make it yours, or set DOCKER_CONFIG") from None
    except msgspec.DecodeError:
        raise SpecError(f"{path} is not Docker's configuration: run `docker login` again, or set DOCKER_CONFIG") from None


def _stored(entry: _Auth, key: str) -> Credentials | None:
    if entry.identitytoken:
        return Credentials("", entry.identitytoken)
    if entry.auth:
        try:
            user, colon, secret = base64.b64decode(entry.auth, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            colon = ""
            user = secret = ""
        if not colon:
            raise SpecError(f"Docker's configuration has damaged credentials for {key}: run `docker login` again")
        return Credentials(user, secret)
    return Credentials(entry.username, entry.password) if entry.username else None


def _ask(helper: str, key: str) -> Credentials | None:
    """Ask docker-credential-HELPER, as Docker does."""
    program = shutil.which(f"docker-credential-{helper}")
    if program is None or "/" in helper:
        raise SpecError(
            f"Docker's configuration keeps the credentials of {key} in {helper!r}: install docker-credential-{helper}, "
            "or take that line out and run `docker login` again"
        )
    try:
        done = subprocess.run([program, "get"], input=key.encode(), capture_output=True, timeout=_HELPER_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SpecError(
            f"docker-credential-{helper} did not answer for {key} ({type(error).__name__}): try it by hand"
        ) from None
    if done.returncode != 0:
        return None  # it has none for this registry
    try:
        answer = msgspec.json.decode(done.stdout, type=_Answer)
    except msgspec.DecodeError:
        raise SpecError(f"docker-credential-{helper} answered for {key} with something else than credentials") from None
    return Credentials("" if answer.Username == "<token>" else answer.Username, answer.Secret)
