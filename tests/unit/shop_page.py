"""A page with links of several kinds, and the URLs of the requests it leads to."""

from __future__ import annotations

from typing import Any

SHOP = """<html><head><title> The  Shop </title></head><body>
<h1 class=name>A <b>bold</b>
 name</h1>
<ul><li><a href="/one?b=2&a=1" title="One">1</a></li><li><a href="two.html">2</a></li>
<li><a href="/one?b=2&a=1#part">again</a></li><li><a href="mailto:x@a.test">mail</a></li>
<li><a href="https://other.test/x">away</a></li><li><a>no href</a></li></ul></body></html>"""


def urls(requests: Any) -> list[str]:
    return [request.url for request in requests]
