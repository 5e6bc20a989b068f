"""Who may ask: on loopback whoever names the page by a loopback name; anywhere else only who brings the token."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from typing import Any

from flask import Flask, Response, abort, redirect, request

COOKIE, QUERY = "headway_token", "token"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
MOST_UPLOAD_BYTES = 96 << 20
"""Largest request: an upload comes as base64 in JSON, so a file may have two thirds of it."""

POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; object-src 'none'; frame-ancestors 'none'; base-uri 'none'"
)
"""Nothing from elsewhere. Inline scripts and eval are Dash's and plotly's own way of loading; text never becomes a script."""


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own only.

    Args:
        host: name or address to listen on.

    Returns:
        True for localhost, 127.0.0.0/8 and ::1.
    """
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def new_token() -> str:
    """A token that cannot be guessed.

    Returns:
        Text that fits into a URL.
    """
    return secrets.token_urlsafe(24)


def guarded(server: Flask, host: str, token: str | None) -> None:
    """Put the guard before every request, and headers on every answer.

    A page elsewhere may point a name of its own at this machine; its requests carry that name, so on loopback only loopback
    names are answered.

    Args:
        server: changed in place.
        host: that is listened on.
        token: that a reader must bring; None on loopback.

    Raises:
        ValueError: an address that others can reach, without a token.
    """
    if not is_loopback(host) and not token:
        raise ValueError(
            f"--host {host} can be reached by others, so it needs a token: add --token, or leave --host out for this machine only"
        )
    server.config["MAX_CONTENT_LENGTH"] = MOST_UPLOAD_BYTES

    @server.before_request
    def _check() -> Any:
        name = (request.host or "").rsplit(":", 1)[0].strip("[]")
        if is_loopback(host) and not is_loopback(name):
            abort(403)
        if token is None:
            return None
        given = request.args.get(QUERY) or ""
        if given and hmac.compare_digest(given.encode(), token.encode()):
            answer = redirect(request.path)
            answer.set_cookie(COOKIE, token, httponly=True, samesite="Strict")
            return answer
        if not hmac.compare_digest((request.cookies.get(COOKIE) or "").encode(), token.encode()):
            abort(401)
        return None

    @server.after_request
    def _head(answer: Response) -> Response:
        answer.headers["Content-Security-Policy"] = POLICY
        answer.headers["X-Content-Type-Options"] = "nosniff"
        answer.headers["Referrer-Policy"] = "no-referrer"
        return answer
