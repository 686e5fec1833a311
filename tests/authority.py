"""An authority of our own, and what it signs: for tests of TLS."""

import subprocess
from pathlib import Path

import msgspec


class Signed(msgspec.Struct, frozen=True):
    """Files of PEM."""

    authority: str
    chain: str
    key: str


def signed(place: Path, *names: str) -> Signed:
    """A certificate for these names (`DNS:localhost`, `IP:127.0.0.1`), by an authority made for it alone."""
    place.mkdir(parents=True, exist_ok=True)
    authority, authority_key, chain, key = (str(place / name) for name in ("ca.pem", "ca.key", "chain.pem", "key.pem"))
    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    _openssl("req", "-x509", *new, "-keyout", authority_key, "-out", authority, "-subj", "/CN=tests", *_may_sign())
    request, terms = str(place / "request.pem"), place / "terms"
    _openssl("req", *new[:-2], "-keyout", key, "-out", request, "-subj", "/CN=server")
    terms.write_text(f"subjectAltName={','.join(names)}\n")
    by = ("-CA", authority, "-CAkey", authority_key, "-CAcreateserial", "-days", "2", "-extfile", str(terms))
    _openssl("x509", "-req", "-in", request, "-out", chain, *by)
    return Signed(authority, chain, key)


def _may_sign() -> tuple[str, ...]:
    return ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign")


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)
