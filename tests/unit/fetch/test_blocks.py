from __future__ import annotations

import pytest

from shoal.exits.refusals import block_of
from shoal.fetch.base import Response

LINKS = b'<a href="/x">x</a>' * 20
RECAPTCHA_FORM = b'<form action="/contact"><div class="g-recaptcha" data-sitekey="k"></div><input name="mail"></form>'


def answer(body: bytes, status: int = 403, **headers: str) -> Response:
    named = {"content-type": "text/html", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return Response(url="https://shop.example/", status=status, headers=named, body=body, wire_size=0, elapsed=0.0)


@pytest.mark.parametrize(
    ("expected", "response"),
    [
        ("cloudflare challenge", answer(b"<title>Just a moment...</title>", cf_mitigated="challenge")),
        ("cloudflare challenge", answer(b"<script>window._cf_chl_opt={cvId:'3'}</script>", 503)),
        (
            "cloudflare challenge",
            answer(b"<script>a.src='/cdn-cgi/challenge-platform/h/g/orchestrate/chl_page/v1'</script>"),
        ),
        ("cloudflare block", answer(b"<title>Attention Required! | Cloudflare</title>")),
        ("datadome", answer(b"<script src='https://ct.captcha-delivery.com/c.js'></script>")),
        ("datadome", answer(b"{}", x_datadome="protected", content_type="application/json")),
        ("perimeterx", answer(b'<div id="px-captcha"></div>')),
        ("perimeterx", answer(b'<div id="px-captcha"></div>', 200)),
        ("imperva", answer(b"Request unsuccessful. Incapsula incident ID: 1-2", 200)),
        ("akamai", answer(b"<h1>Access Denied</h1>https&#58;&#47;&#47;errors.edgesuite.net&#47;18", 403)),
        ("aws waf", answer(b"", 405, x_amzn_waf_action="captcha")),
        ("aws waf", answer(b"", 202, x_amzn_waf_action="challenge")),
        (
            "recaptcha interstitial",
            answer(b"Our systems have detected unusual traffic from your computer network.", 429),
        ),
        ("captcha", answer(b'<form action="/errors/validateCaptcha">', 200)),
        ("captcha", answer(b'<div class="h-captcha"></div>', 429)),
        ("captcha", answer(b"<title>Robot Check</title>", 503)),
        ("captcha", answer(RECAPTCHA_FORM, 403)),
    ],
)
def test_names_well_known_block_pages(expected: str, response: Response) -> None:
    assert block_of(response) == expected


@pytest.mark.parametrize(
    "response",
    [
        answer(b"<h1>Books</h1>" + LINKS, 200),
        answer(RECAPTCHA_FORM, 200),
        answer(RECAPTCHA_FORM + LINKS, 403),
        answer(b"<p>How to solve hcaptcha.com/ and Incapsula incident ID</p>" + LINKS, 200),
        answer(b"<script src='/cdn-cgi/challenge-platform/scripts/jsd/main.js'></script>", 200),
        answer(b"<script src='/cdn-cgi/challenge-platform/h/b/scripts/jsd/1/main.js'></script>", 403),
        answer(b"<script src='/_Incapsula_Resource?SWJIYLWA=1'></script>", 200),
        answer(b"<script>window._pxAppId = 'PX1'</script>", 200),
        answer(b"<script src='https://js.datadome.co/tags.js'></script>", 200, x_datadome="protected"),
        answer(b"<h1>Forbidden</h1>", 403),
        answer(b"<h1>Not here</h1>window._cf_chl_opt", 404),
        answer(b"x" * 20_000 + b"window._cf_chl_opt", 200),
        answer(b"window._cf_chl_opt", 200, content_type="application/javascript"),
        answer(b"", 429),
    ],
)
def test_an_ordinary_page_is_no_block_page(response: Response) -> None:
    assert block_of(response) is None


def test_looks_at_the_beginning_alone() -> None:
    assert block_of(answer(b" " * 20_000 + b"window._cf_chl_opt", 403)) is None
