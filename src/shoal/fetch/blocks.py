"""Well-known block pages, by which sites refuse a visitor. Pure; a page that only embeds a captcha is no block page."""

from __future__ import annotations

import re
from typing import Final

from shoal.fetch.base import Response

LOOKED_AT: Final = 16 * 1024
SMALL_PAGE: Final = 12 * 1024  # a longer page with status 200 is no block page
MOST_LINKS: Final = 3  # a block page has hardly any links
REFUSALS: Final = frozenset({403, 429, 503})

# Marks of the block pages themselves, not of the scripts that the same services put into every page of a site.
_MARKS: Final[tuple[tuple[str, bytes], ...]] = (
    (
        "cloudflare challenge",
        rb"/cdn-cgi/challenge-platform/h/\w+/orchestrate/|window\._cf_chl_opt|cf-browser-verification",
    ),
    ("cloudflare block", rb"id=\"cf-error-details\"|Attention Required! \| Cloudflare"),
    ("datadome", rb"geo\.captcha-delivery\.com|ct\.captcha-delivery\.com"),
    ("perimeterx", rb"id=\"px-captcha\"|window\._pxUuid"),
    ("imperva", rb"Incapsula incident ID|_Incapsula_Resource\?[^\"']{0,500}incident_id="),
    ("akamai", rb"errors\.edgesuite\.net|Reference&#32;&#35;[0-9a-f]+&#46;|bm-verify="),
    ("aws waf", rb"window\.gokuProps"),
    ("kasada", rb"/2d206a39-8ed7-437e-a3be-862e0f06eea3/ips\.js"),
    ("sucuri", rb"Sucuri WebSite Firewall - Access Denied|sucuri_cloudproxy_js"),
    ("recaptcha interstitial", rb"Our systems have detected unusual traffic from your computer network"),
    ("captcha", rb"/errors/validateCaptcha"),
)
_ANY_MARK: Final = re.compile(b"|".join(b"(?P<m%d>%b)" % (index, mark) for index, (_, mark) in enumerate(_MARKS)))
# Only on a page with a status that refuses: a captcha there is the purpose of the page.
_CAPTCHA: Final = re.compile(
    rb"g-recaptcha|google\.com/recaptcha/|hcaptcha\.com/|h-captcha|cf-turnstile|challenges\.cloudflare\.com/turnstile"
    rb"|<title>[^<]{0,80}(?:captcha|are you (?:a )?(?:human|robot)|robot check|access denied by bot)",
    re.IGNORECASE,
)


def block_of(response: Response) -> str | None:
    """The name of the known block page that this response is; None if it is none."""
    status, headers, body = response.status, response.headers, response.body
    if headers.get("cf-mitigated") == "challenge":
        return "cloudflare challenge"
    if headers.get("x-amzn-waf-action") in ("captcha", "challenge"):
        return "aws waf"
    if status == 403 and headers.get("x-datadome") == "protected":
        return "datadome"
    refuses = status in REFUSALS
    if not refuses and (status != 200 or len(body) > SMALL_PAGE):
        return None
    if not body or "html" not in headers.get("content-type", "html"):
        return None
    leads_nowhere = len(body) <= SMALL_PAGE and body.count(b"<a ") <= MOST_LINKS
    found = _ANY_MARK.search(body, 0, LOOKED_AT)
    if found and found.lastgroup and (refuses or leads_nowhere):
        return _MARKS[int(found.lastgroup[1:])][0]
    return "captcha" if refuses and leads_nowhere and _CAPTCHA.search(body, 0, LOOKED_AT) else None
