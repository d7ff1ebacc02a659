"""The rules of a crawl of one host, and hrefs and bases of every kind for hypothesis to draw from."""

from __future__ import annotations

from hypothesis import strategies as st

from shoal.settings.table import Settings
from shoal.urls.canonical import UrlRules

HOST = "example.com"
BASE = "https://example.com/shop/list?page=2"
EVERYTHING = Settings(allow=("*",))

SEGMENTS = st.text("ab%2eE7./\\:;@ \t\né🐟?#&=_-", max_size=12)
STARTS = st.sampled_from(
    [
        "",
        "/",
        "//",
        "///",
        "\\",
        "/\t/",
        "?",
        "#",
        " ",
        ".",
        "..",
        "../",
        "../../",
        "./",
        "h",
        "http:",
        "https:",
        "HTTP://",
        "http://h",
        "https://h",
        "https://example.com",
        "https://example.com/",
        "http://[::1]:80",
        "http://u:p@h",
        "data:",
    ]
)
HREFS = st.builds(str.__add__, STARTS, SEGMENTS) | st.text(max_size=30)
BASES = st.builds(
    "{}://{}{}{}".format,
    st.sampled_from(["http", "https", "HTTPS"]),
    st.sampled_from(["example.com", "Example.com:80", "h", "[::1]", "user@h"]),
    st.sampled_from(
        ["", "/", "//", "//a/b", "/a", "/a/", "/a/b.html", "/a/..", "/a/.", "/.a", "/a/%2e%2E", "/a\\b/c", "/é/"]
    ),
    st.sampled_from(["", "?", "?q=/x", "?a\\b", "?x y", "#f", "?q#/f", "\t/x"]),
)


def rules(**changes: object) -> UrlRules:
    return UrlRules(Settings(**changes), start_hosts=[HOST])  # type: ignore[arg-type]  # the tests' own keywords
