"""Requests and links become tasks, or are kept out with a reason."""

from __future__ import annotations

from typing import Any

import pytest

from shoal import Request
from shoal.errors import UsageError
from shoal.journey.intake import Found, Intake, RecentKeys
from shoal.model import Render, Task
from shoal.settings.table import Settings
from shoal.testing.fakes import make_page, task_for
from shoal.urls.canonical import UrlRules, key_of

HERE = "https://a.test/dir/page"


def make_intake(known: RecentKeys | None = None, *, pool: str = "", **settings: Any) -> Intake:
    values = Settings(**settings)
    rules = UrlRules(values, start_hosts=["a.test"])
    return Intake(rules, values, known=known, pools=["eu", "us"], pool=pool, clock=lambda: 50.0)


def take(request: Request, *, intake: Intake | None = None, **parent: Any) -> Found:
    found = Found()
    (intake or make_intake()).request(request, found, parent=task_for(HERE, **parent), base=HERE)
    return found


def taken(request: Request, **parent: Any) -> Task:
    [task] = take(request, **parent).tasks.values()
    return task


def test_an_empty_url_is_no_task_and_nothing_kept_out() -> None:
    for href in ("", None, "#top", ["", None]):
        found = Found()
        make_intake().follow(make_page("<a href=/1>").follow(url=href), found)
        assert (found.tasks, found.rejected) == ({}, {})
    found = Found()
    make_intake().follow(make_page("").follow(url=["page-2.html", None]), found)
    assert [task.url for task in found.tasks.values()] == ["https://a.test/dir/page-2.html"]


def follow(body: str, target: Any = "a", *, intake: Intake | None = None, **options: Any) -> Found:
    found = Found()
    (intake or make_intake()).follow(make_page(body).follow(target, **options), found)
    return found


def test_a_plain_request_becomes_a_task_one_deeper() -> None:
    task = taken(Request("next?b=1"), depth=3)
    assert (task.url, task.lane, task.handler) == ("https://a.test/dir/next?b=1", "a.test", "parse")
    assert (task.depth, task.parent, task.created) == (4, key_of(HERE), 50.0)
    assert task.key == key_of(task.url)
    assert task.max_attempts == Settings().max_attempts


def test_a_request_overrides_everything() -> None:
    def book(page: Any) -> None: ...

    request = Request(
        "/x",
        handler=book,
        method="post",
        headers={"X-A": "b"},
        body="é",
        meta={"n": [1, {"a": None}]},
        priority=-5,
        depth=9,
        delay=2.5,
        max_attempts=1,
        pool="eu",
    )
    task = taken(request)
    assert (task.handler, task.method, task.headers, task.body) == ("book", "POST", {"X-A": "b"}, "é".encode())
    assert (task.meta, task.priority, task.depth, task.delay) == ({"n": [1, {"a": None}]}, -5, 9, 2.5)
    assert (task.max_attempts, task.pool, task.lane) == (1, "eu", "a.test via eu")
    assert task.key == key_of(task.url, method="POST", body="é".encode()) != key_of(task.url)
    assert taken(Request("/x", handler="book")).handler == "book"


def test_json_is_a_body_with_its_content_type() -> None:
    task = taken(Request("/api", method="POST", json={"a": 1}, headers={"X-A": "b"}))
    assert (task.body, task.headers) == (b'{"a":1}', {"content-type": "application/json", "X-A": "b"})


def test_a_key_of_ones_own_merges_and_no_dedup_never_does() -> None:
    assert taken(Request("/x", key="k")).key == taken(Request("/y", key="k")).key
    assert taken(Request("/x", key="k")).key != taken(Request("/x")).key
    assert taken(Request("/x", dedup=False)).key != taken(Request("/x", dedup=False)).key
    assert not taken(Request("/x?utm_source=1", dedup=False)).merged
    assert taken(Request("/x?utm_source=1")).merged


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://other.test/", "out_of_scope"),
        ("ftp://a.test/", "scheme"),
        ("http://[", "invalid_url"),
        ("/" + "x" * 3000, "url_too_long"),
        ("/a/a/a/a", "path_repeats"),
        ("https://user:secret@a.test/", "credentials"),
        ("/private/x", "denied"),
    ],
)
def test_what_a_rule_keeps_out_is_counted_with_samples(url: str, reason: str) -> None:
    intake = make_intake(deny=["/private/"])
    found = take(Request(url), intake=intake)
    assert not found.tasks
    assert found.rejected == {reason: 1}
    [(named, sample)] = found.samples
    assert named == reason
    assert "secret" not in sample
    linked = follow(f'<a href="{url}">', intake=intake)
    assert (linked.rejected, linked.tasks) == ({reason: 1}, {})


def test_depth_is_limited_for_requests_and_links() -> None:
    intake = make_intake(max_depth=2)
    assert take(Request("/x"), intake=intake, depth=1).tasks
    found = take(Request("/x"), intake=intake, depth=2)
    assert (found.rejected, found.samples) == ({"depth": 1}, [("depth", "https://a.test/x")])
    page = make_page("<a href=/1></a><a href=/2></a>", depth=2)
    intake.follow(page.follow("a"), found)
    assert found.rejected == {"depth": 3}
    assert take(Request("/x", depth=0), intake=intake, depth=2).tasks


def test_links_beyond_the_limit_of_a_page_are_named() -> None:
    intake = make_intake(max_links=3)
    page = make_page("".join(f"<a href=/{number}></a>" for number in range(10)))
    found = Found()
    intake.follow(page.follow("a"), found)
    intake.follow(page.follow(["/more"]), found)
    assert (len(found.tasks), found.rejected) == (3, {"too_many_links": 8})
    assert len(found.samples) == 3


def test_known_keys_and_repeated_ones_are_duplicates() -> None:
    known = RecentKeys()
    known.add(key_of("https://a.test/1"))
    intake = make_intake(known)
    found = follow("<a href=/1></a><a href=/2></a><a href=/2#x></a><a href=/1?utm_source=x></a>", intake=intake)
    assert [task.url for task in found.tasks.values()] == ["https://a.test/2"]
    assert found.rejected == {"duplicate": 1}
    intake.request(Request("/2"), found, parent=None, base=HERE)
    intake.request(Request("/2?utm_source=x"), found, parent=None, base=HERE)
    assert found.rejected == {"duplicate": 3, "merged": 1}
    assert found.samples == [("merged", "https://a.test/2?utm_source=x")]


def test_links_become_tasks_in_the_order_of_the_page() -> None:
    intake = make_intake()
    follow("<a href=/3></a><a href=/outside></a>", intake=intake)  # met before, but not known to the frontier
    body = "<a href=2></a><a href=/3></a><a href=//b.test/></a><a href=https://a.test/1></a><a href=/1></a>"
    for _ in range(2):
        found = follow(body, intake=intake)
        assert [task.url for task in found.tasks.values()] == [f"https://a.test/{path}" for path in ("dir/2", "3", "1")]
        assert found.rejected == {"out_of_scope": 1}
        assert found.samples == [("out_of_scope", "https://b.test/")]


def test_of_links_with_one_key_the_first_on_the_page_counts() -> None:
    intake = make_intake(deny=["/1[?]utm_source=x"])
    first = "<a href=/1?utm_source=x></a><a href=/1></a>"
    assert follow(first, intake=intake).rejected == {"denied": 1}
    assert not follow(first, intake=intake).tasks
    assert [task.url for task in follow("<a href=/2?utm_id=x></a><a href=/2></a>").tasks.values()] == [
        "https://a.test/2?utm_id=x"
    ]


def test_follow_shares_its_options_among_all_links() -> None:
    found = follow("<a href=/1></a><a href=/2></a>", handler="item", priority=2, meta={"a": 1}, delay=1.0)
    assert {(task.handler, task.priority, task.delay, task.depth) for task in found.tasks.values()} == {
        ("item", 2, 1.0, 1)
    }
    own = follow("<a href=/1></a>", method="POST", dedup=True)
    assert [task.method for task in own.tasks.values()] == ["POST"]


@pytest.mark.parametrize(
    "options",
    [
        {"headers": {"X-Count": 1}},
        {"headers": ["a"]},
        {"meta": [1]},
        {"meta": {"a": object()}},
        {"meta": {"a": 2**70}},
        {"meta": {"a": "\ud800"}},
        {"priority": "high"},
        {"priority": 1.5},
        {"delay": "1"},
        {"delay": float("nan")},
        {"max_attempts": "3"},
        {"max_attempts": -1},
    ],
)
def test_what_a_frontier_could_not_keep_is_refused_in_the_spider(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="cannot be kept"):
        take(Request("/x", **options))
    with pytest.raises(UsageError, match="cannot be kept"):
        follow("<a href=/1>", **options)


def test_the_field_that_is_wrong_is_named() -> None:
    with pytest.raises(UsageError, match="Expected `int`, got `str` - at `priority`"):
        take(Request("/x", priority="high"))  # type: ignore[arg-type]  # what people write
    with pytest.raises(UsageError, match="its depth is -1"):
        take(Request("/x", depth=-1))


def test_a_task_waits_in_the_lane_of_its_pool_under_the_key_of_its_url() -> None:
    direct, through = taken(Request("/x")), taken(Request("/x", pool="us"))
    assert (direct.lane, through.lane) == ("a.test", "a.test via us")
    assert (direct.key, direct.shape) == (through.key, through.shape)
    [link] = follow("<a href=/1>", pool="eu").tasks.values()
    assert (link.lane, link.pool) == ("a.test via eu", "eu")


def test_requests_that_name_no_pool_take_the_spiders() -> None:
    intake = make_intake(pool="eu")
    [request] = take(Request("/x"), intake=intake).tasks.values()
    [link] = follow("<a href=/1>", intake=intake).tasks.values()
    [direct] = take(Request("/x", pool="direct"), intake=intake).tasks.values()
    assert [task.lane for task in (request, link, direct)] == ["a.test via eu", "a.test via eu", "a.test"]


def test_without_a_pool_of_the_spider_links_go_the_way_of_their_page() -> None:
    [request] = take(Request("/x"), pool="us").tasks.values()
    [direct] = take(Request("/x", pool="direct"), pool="us").tasks.values()
    [by_spider] = take(Request("/x"), intake=make_intake(pool="direct"), pool="us").tasks.values()
    assert [task.lane for task in (request, direct, by_spider)] == ["a.test via us", "a.test", "a.test"]
    found = Found()
    make_intake().follow(make_page("<a href=/1>", pool="us").follow(), found)
    assert [task.lane for task in found.tasks.values()] == ["a.test via us"]


@pytest.mark.parametrize("pool", ["uk", "", ["eu"]])
def test_an_unknown_pool_is_refused_in_the_spider(pool: Any) -> None:
    with pytest.raises(UsageError, match=r"there is no pool .*, only direct, eu, us"):
        take(Request("/x", pool=pool))
    with pytest.raises(UsageError, match="there is no pool"):
        follow("<a href=/1>", pool=pool)


@pytest.mark.parametrize("options", [{}, {"dedup": False}])
def test_secret_headers_follow_links_of_the_pages_own_origin_only(options: dict[str, Any]) -> None:
    links = "<a href=/one>b</a><a href=https://a.test/two>a</a><a href=http://a.test/>c</a>"
    headers = {"authorization": "s", "Cookie": "s", "X-API-Key": "s", "Accept": "text/html"}
    found = follow(
        "<base href='https://b.test/'>" + links, intake=make_intake(allow=("*",)), headers=headers, **options
    )
    sent = {task.url: task.headers for task in found.tasks.values()}
    bare = {"Accept": "text/html"}
    assert sent == {"https://b.test/one": bare, "https://a.test/two": headers, "http://a.test/": bare}


@pytest.mark.parametrize(
    ("href", "meant"),
    [
        ("/one", "https://b.test/one"),
        ("one?a=b", "https://b.test/dir/one?a=b"),
        ("https://b.test/one", "https://b.test/one"),
        ("//me:word@b.test/", None),
        ("?" + "x" * 3000, None),
        ("#top", None),
    ],
)
def test_a_base_on_another_host_brings_nothing_of_it_into_scope(href: str, meant: str | None) -> None:
    body = f"<base href='https://b.test/dir/'><a href='{href}'>x</a><a href='https://a.test/two'>y</a>"
    found = follow(body)
    assert [task.url for task in found.tasks.values()] == ["https://a.test/two"]
    assert found.rejected.keys() <= {"out_of_scope", "credentials", "url_too_long"}
    allowed = follow(body, intake=make_intake(allow=("b.test",)))
    assert [task.url for task in allowed.tasks.values()] == ([meant] if meant else [])


def test_of_a_page_with_far_too_many_links_the_rest_are_counted_and_not_looked_at() -> None:
    intake = make_intake(max_links=4)
    body = "".join(f"<a href=/{number}>x</a>" for number in range(1000))
    found = follow(body, intake=intake)
    assert list(found.tasks) == [intake.rules.resolve(f"https://a.test/{number}").key for number in range(4)]
    assert found.rejected == {"too_many_links": 996}
    assert ("too_many_links", "https://a.test/20") in found.samples


def test_links_have_their_own_kind_else_the_spiders_and_never_that_of_their_page() -> None:
    intake = make_intake(kind="eu")
    [named] = take(Request("/x", kind="browser"), intake=intake, kind="parse").tasks.values()
    [plain] = take(Request("/x"), intake=intake, kind="parse").tasks.values()
    [link] = follow("<a href=/1>", intake=intake, kind="browser").tasks.values()
    [of_spider] = follow("<a href=/1>", intake=intake).tasks.values()
    assert (named.kind, plain.kind, link.kind, of_spider.kind) == ("browser", "eu", "browser", "eu")
    assert taken(Request("/x")).kind == "http"


def test_a_request_with_render_is_for_workers_with_a_browser() -> None:
    render = Render(wait_for="h1")
    assert [
        (one.kind, one.render) for one in (taken(Request("/x", render=True)), taken(Request("/x", render=render)))
    ] == [
        ("browser", Render()),
        ("browser", render),
    ]
    assert (taken(Request("/x")).render, taken(Request("/x", kind="browser")).render) == (None, None)


def test_a_spider_with_render_renders_all_but_what_says_otherwise() -> None:
    intake = make_intake(render=True)
    asked = [Request("/1"), Request("/2", render=False), Request("/3", kind="eu")]
    tasks = [task for request in asked for task in take(request, intake=intake).tasks.values()]
    tasks += follow("<a href=/4>", intake=intake).tasks.values()
    assert [(task.kind, task.render) for task in tasks] == [
        ("browser", Render()),
        ("http", None),
        ("eu", None),
        ("browser", Render()),
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"render": "yes"}, "it is True, False or a Render"), ({"render": True, "kind": "eu"}, "leave its kind out")],
)
def test_a_render_that_cannot_be_meant_is_refused_in_the_spider(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        take(Request("/x", **options))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"wait": "loaded"}, "wait of a Render is one of dom, load, quiet, not 'loaded'"),
        ({"block": ("images",)}, "some of image, media, font, stylesheet, script, not 'images'"),
        ({"block": "image"}, "a tuple of some of"),
    ],
)
def test_a_word_of_a_render_that_is_none_is_refused_where_it_is_written(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Render(**options)


@pytest.mark.parametrize("step", [{}, {"press": "a"}, {"click": 3}, {"scroll": "1"}, {"click": "a", "scroll": 1}])
def test_a_step_that_nobody_can_do_is_refused_where_it_is_written(step: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a step of a Render is one of"):
        Render(steps=(step,))


@pytest.mark.parametrize("kind", ["Browser", "", "a,b", "a:b", "x" * 33, 7])
def test_a_kind_that_is_no_name_is_refused_in_the_spider(kind: Any) -> None:
    with pytest.raises(UsageError, match="is not a kind: write a name"):
        take(Request("/x", kind=kind))
