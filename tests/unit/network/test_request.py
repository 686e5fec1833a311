"""What a connection's first bytes ask for, and that nothing they hold can do harm."""

import asyncio
import re
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.network.request import HEAD_BYTES, BadRequest, Incoming, Request, http_answer, parse_http, read_request


def read(data: bytes) -> tuple[Request, bytes]:
    """The request in `data`, and what follows it."""

    async def main() -> tuple[Request, bytes]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.setblocking(False)

            async def send() -> None:
                await asyncio.get_running_loop().sock_sendall(theirs, data)
                theirs.shutdown(socket.SHUT_WR)

            sending = asyncio.ensure_future(send())
            incoming = Incoming(ours)
            try:
                return await read_request(incoming), incoming.rest
            finally:
                sending.cancel()
                await asyncio.wait([sending])

    return asyncio.run(main())


def refusal(data: bytes) -> bytes:
    with pytest.raises(BadRequest) as caught:
        read(data)
    return caught.value.answer


def test_connect() -> None:
    request, rest = read(
        b"CONNECT Example.org:443 HTTP/1.1\r\nHost: example.org:443\r\nProxy-Authorization: Basic eA==\r\n\r\nhello"
    )
    assert request == Request("example.org", 443, "tunnel", b"")
    assert rest == b"hello"
    assert read(b"CONNECT [2606:4700::1]:8443 HTTP/1.0\r\n\r\n")[0][:2] == ("2606:4700::1", 8443)


def test_absolute_form_becomes_a_request_for_the_server() -> None:
    head = (
        b"POST http://example.org:8080/a?b=http://c#d HTTP/1.1\r\n"
        b"Host: another.example\r\n"
        b"Proxy-Connection: keep-alive\r\n"
        b"PROXY-AUTHORIZATION: Basic c2VjcmV0\r\n"
        b"Connection: keep-alive, X-Hop\r\n"
        b"x-hop: 1\r\n"
        b"Content-Length: 4\r\n\r\nbody"
    )
    request, rest = read(head)
    assert request[:3] == ("example.org", 8080, "forward")
    assert request.first == (
        b"POST /a?b=http://c HTTP/1.1\r\nHost: example.org:8080\r\nContent-Length: 4\r\nConnection: close\r\n\r\n"
    )
    assert rest == b"body"


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        (b"http://example.org", (80, b"/")),
        (b"HTTP://example.org/", (80, b"/")),
        (b"http://example.org?x", (80, b"/?x")),
        (b"http://example.org:/x", (80, b"/x")),
        (b"http://example.org#x", (80, b"/")),
    ],
)
def test_targets(target: bytes, wanted: tuple[int, bytes]) -> None:
    request = parse_http(b"GET " + target + b" HTTP/1.1")
    assert (request.port, request.first.split(b" ")[1]) == wanted


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1",
        b"GET https://example.org/ HTTP/1.1",
        b"GET ftp://example.org/ HTTP/1.1",
        b"GET http:///path HTTP/1.1",
        b"GET http://user:word@example.org/ HTTP/1.1",
        b"GET http://example.org:0/ HTTP/1.1",
        b"GET http://example.org:65536/ HTTP/1.1",
        b"GET http://example.org:443443/ HTTP/1.1",
        b"GET http://exa mple.org/ HTTP/1.1",
        b"GET http://ex\nample.org/ HTTP/1.1",
        b"CONNECT example.org HTTP/1.1",
        b"CONNECT :443 HTTP/1.1",
        b"CONNECT user@example.org:443 HTTP/1.1",
        b"CONNECT [fe80::1%25eth0]:443 HTTP/1.1",
        b"CONNECT ex\xe4mple.org:443 HTTP/1.1",
        b"GET http://example.org/ HTTP/2.0",
        b"GET  http://example.org/ HTTP/1.1",
        b"PRI * HTTP/2.0",
        b"G\0T http://example.org/ HTTP/1.1",
        b"GET http://example.org/ HTTP/1.1\r\nno colon",
        b"GET http://example.org/ HTTP/1.1\r\nA: b\r\n folded",
        b"GET http://example.org/ HTTP/1.1\r\nA: b\nHost: c",
        b"GET http://example.org/ HTTP/1.1\r\nA : b",
        b"",
    ],
)
def test_what_is_refused(head: bytes) -> None:
    assert refusal(head + b"\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_a_head_that_does_not_end() -> None:
    assert refusal(b"CONNECT a:1 HTTP/1.1\r\n" + b"A: b\r\n" * HEAD_BYTES).startswith(b"HTTP/1.1 431 ")
    assert refusal(b"CONNECT a:1 HTTP/1.1\r\n") == b""


def test_an_answer_is_one_line_and_a_body() -> None:
    head, body = http_answer(403, "why: do this").split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 403 why: do this\r\n")
    assert body == b"why: do this\n"
    assert b"Content-Length: 13" in head


NAME = b"\x05\x01\x00\x05\x01\x00\x03\x0bexample.org\x01\xbb"


def test_socks() -> None:
    request, rest = read(NAME + b"rest")
    assert (request, rest) == (Request("example.org", 443, "socks", b""), b"rest")
    assert read(b"\x05\x02\x02\x00\x05\x01\x00\x01\x01\x02\x03\x04\x00\x50")[0][:2] == ("1.2.3.4", 80)
    assert read(b"\x05\x01\x00\x05\x01\x00\x04" + bytes(10) + b"\xff\xff\x7f\0\0\1\x00\x50")[0][:2] == ("127.0.0.1", 80)
    assert request.granted()[:2] == b"\x05\x00"
    assert [request.denied(status, "")[1] for status in (403, 502, 504)] == [2, 4, 4]


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"\x05\x01\x02", b"\x05\xff"),
        (b"\x05\x00", b"\x05\xff"),
        (NAME.replace(b"\x05\x01\x00\x03", b"\x05\x02\x00\x03"), b"\x05\x07"),
        (b"\x05\x01\x00\x05\x01\x00\x09", b"\x05\x08"),
        (NAME.replace(b"example.org", b"exa\0ple.org"), b"\x05\x01"),
        (NAME.replace(b"\x01\xbb", b"\x00\x00"), b"\x05\x01"),
        (NAME[:9], b""),
    ],
)
def test_socks_refusals(data: bytes, answer: bytes) -> None:
    assert refusal(data)[:2] == answer


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    try:
        request = parse_http(data)
    except BadRequest as error:
        assert error.answer.startswith(b"HTTP/1.1 400 ")  # noqa: PT017 - it is right either way
    else:
        assert re.fullmatch(r"[a-z0-9_.:-]+", request.host)


@given(st.binary(max_size=40), st.sampled_from([b"GET http://", b"CONNECT ", b"GET http://a/"]))
def test_no_target_smuggles_a_line(middle: bytes, start: bytes) -> None:
    try:
        request = parse_http(start + middle + b" HTTP/1.1")
    except BadRequest:
        return
    assert request.first.count(b"\r\n") in (0, 4)
    assert request.first.count(b"\n") == request.first.count(b"\r\n")
