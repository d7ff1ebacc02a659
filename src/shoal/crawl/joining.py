"""Which store and archive a process uses for a crawl: the crawl's own, the named ones, or a refusal that says why."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from shoal.crawl.opening import Places
from shoal.crawl.places import (
    Obstacle,
    OutOfReach,
    RememberedPlace,
    ResultPlaces,
    check_store_exists,
    default_store,
    is_first,
    is_missing,
    is_same,
    recalled,
    remember,
)
from shoal.crawl.record import results_known
from shoal.errors import UsageError
from shoal.model import Crawl
from shoal.settings.table import ARCHIVE_VARIABLE, STORE_VARIABLE
from shoal.text.secrets import masked

MEANT = "add --other-store if both are meant"


class Kind(NamedTuple):
    """A store or an archive in messages: its content, its flag, an example that all machines reach."""

    content: str
    option: str
    example: str


STORE = Kind("items", "--store", "postgresql://…")
ARCHIVE = Kind("raw pages", "--archive", "s3://…")


def places_of_new(places: Places) -> Places:
    """The places of a new crawl: the store is in the frontier's file unless another one is named."""
    return replace(places, store=places.store or default_store(places.frontier))


def places_to_join(crawl: Crawl, places: Places, *, adds_archive: bool = False) -> Places:
    """The places of a process that works on a crawl: the crawl's own unless named. Refuses other ones, so that items do
    not end up in two places by mistake. `adds_archive`: a crawl without an archive may get one."""
    results = results_known(crawl)
    if results.store is None:
        return places_of_new(places)
    return replace(
        places,
        store=_store_to_join(crawl.id, results.store, places),
        archive=_archive_to_join(crawl.id, results, places, adds=adds_archive),
    )


def store_to_read(crawl: Crawl, places: Places) -> str:
    """The store of a command that reads: the named one, else the crawl's own."""
    store = results_known(crawl).store
    if places.store or store is None:
        return places_of_new(places).store
    return _recalled(crawl.id, STORE, store, places)


def existing_store(crawl: Crawl, places: Places) -> str:
    """The same; refuses a store that is missing or out of reach."""
    url = store_to_read(crawl, places)
    check_store_exists(url)
    return url


def archive_to_read(crawl: Crawl, places: Places) -> str | None:
    """The archive of a command that reads: the named one, else the crawl's own, if it has one."""
    archive = results_known(crawl).archive
    if places.archive or archive is None:
        return places.archive
    return _recalled(crawl.id, ARCHIVE, archive, places)


def check_own_store(crawl: Crawl, places: Places, *, items: int) -> None:
    """Refuse a named store that is not the crawl's own and has none of its items."""
    store = results_known(crawl).store
    if not items and store is not None and not is_same(store, places.store, frontier=places.frontier):
        raise _another(crawl.id, STORE, store, named=places.store, variable=STORE_VARIABLE)


def check_own_archive(crawl: Crawl, places: Places, *, captures: int) -> None:
    """Refuse a named archive that is not the crawl's own and has none of its pages."""
    archive, named = results_known(crawl).archive, places.archive
    if not captures and archive is not None and named is not None and not is_same(archive, named):
        raise _another(crawl.id, ARCHIVE, archive, named=named, variable=ARCHIVE_VARIABLE)


def _another(crawl: str, what: Kind, place: RememberedPlace, *, named: str, variable: str) -> UsageError:
    return UsageError(
        f"the {what.content} of {crawl} lie in {place.shown}, and {masked(named)} has none of them: leave out"
        f" {what.option} and {variable}"
    )


def foreign_store(crawl: Crawl, places: Places) -> str:
    """The named store, masked, if it is not the crawl's own; else empty."""
    store = results_known(crawl).store
    is_foreign = places.store and store is not None and not is_same(store, places.store, frontier=places.frontier)
    return masked(places.store) if is_foreign else ""


def shares_store(crawl: Crawl, places: Places) -> bool:
    """Whether a crawl's items are in the store of these places, or its record does not say."""
    store = results_known(crawl).store
    return store is None or is_same(store, places.store, frontier=places.frontier)


def stores_beside(crawl: Crawl, places: Places) -> list[str]:
    """The stores in a crawl's record, masked, without the one of these places."""
    results = results_known(crawl)
    if results.store is None:
        return []
    here = _named(remember(places.store, frontier=places.frontier))
    is_own = is_same(results.store, places.store, frontier=places.frontier)
    return [*([] if is_own else [results.store.shown]), *(name for name in results.other_stores if name != here)]


def has_all_items(crawl: Crawl, places: Places) -> bool:
    """Whether all items of a crawl are in the store of these places, by its record. False if the file was replaced
    since: the new one may lack items."""
    results = results_known(crawl)
    if results.store is None or results.other_stores:
        return False
    return is_first(results.store, places.store, frontier=places.frontier)


def results_of(places: Places, former: ResultPlaces | None = None) -> ResultPlaces:
    """The results in a crawl's record when a process uses `places` for it. `former`: in its record before."""
    store = remember(places.store, frontier=places.frontier)
    archive = None if places.archive is None else remember(places.archive)
    if former is None or former.store is None:
        return ResultPlaces(store=store, archive=archive)
    if not is_same(former.store, places.store, frontier=places.frontier):
        former = replace(former, other_stores=_with(former.other_stores, store))
    if archive is None or places.archive is None:
        return former
    if former.archive is None:
        return replace(former, archive=archive)
    if not is_same(former.archive, places.archive):
        former = replace(former, other_archives=_with(former.other_archives, archive))
    return former


def _store_to_join(crawl: str, store: RememberedPlace, places: Places) -> str:
    if not places.store:
        try:
            return _recalled(crawl, STORE, store, places, joins=True)
        except UsageError:
            if not places.other_store:
                raise
            return default_store(places.frontier)
    if places.other_store:
        return places.store
    if not is_same(store, places.store, frontier=places.frontier):
        raise UsageError(
            f"the items of {crawl} lie in {store.shown}, not in {masked(places.store)}: leave out --store and"
            f" {STORE_VARIABLE}, or {MEANT}"
        )
    if is_missing(store):
        raise UsageError(
            f"the items of {crawl} lay in {store.shown}, which is not there any more: put it back, or, without the"
            f" items it had, go on with a new one: {STORE.option} {masked(places.store)} --other-store"
        )
    return places.store


def _archive_to_join(crawl: str, results: ResultPlaces, places: Places, *, adds: bool) -> str | None:
    named, archive = places.archive, results.archive
    if named is None:
        if archive is None:
            return None
        try:
            return _recalled(crawl, ARCHIVE, archive, places, joins=True)
        except UsageError:
            if not places.other_store:
                raise
            return None
    if places.other_store or (archive is not None and is_same(archive, named)) or (archive is None and adds):
        return named
    if archive is None:
        raise UsageError(
            f"{crawl} keeps no raw pages: leave out --archive and {ARCHIVE_VARIABLE}, or run the crawl again with it;"
            f" or {MEANT}"
        )
    raise UsageError(
        f"the raw pages of {crawl} lie in {archive.shown}, not in {masked(named)}: leave out --archive and"
        f" {ARCHIVE_VARIABLE}, or {MEANT}"
    )


def _recalled(crawl: str, what: Kind, place: RememberedPlace, places: Places, *, joins: bool = False) -> str:
    try:
        return recalled(place, frontier=places.frontier)
    except OutOfReach as error:
        hint = _hint(what, place, error.obstacle, joins=joins)
        raise UsageError(f"the {what.content} of {crawl} lie in {error}: {hint}") from None


def _hint(what: Kind, place: RememberedPlace, obstacle: Obstacle, *, joins: bool) -> str:
    """Which flag helps. `joins`: the process works on the crawl."""
    if obstacle is Obstacle.SECRET:
        return f"give {what.option} with it, as in {_with_password(place.shown)}, or set {STORE_VARIABLE} or PGPASSWORD"
    if not joins:
        return f"{'run this there, or ' if obstacle is Obstacle.MACHINE else ''}give {what.option} URL"
    if obstacle is Obstacle.MISSING:
        return f"give its new place: {what.option} URL --other-store"
    return (
        f"begin crawls with a place that all machines reach ({what.option} {what.example}), or give this process one of"
        f" its own: {what.option} URL --other-store"
    )


def _with_password(shown: str) -> str:
    scheme, _, rest = shown.partition("://")
    user, at, host = rest.rpartition("@")
    return f"{scheme}://{user}:…{at or '@'}{host}"


def _with(known: tuple[str, ...], place: RememberedPlace) -> tuple[str, ...]:
    where = _named(place)
    return known if where in known else (*known, where)


def _named(place: RememberedPlace) -> str:
    return f"{place.shown} on {place.host}" if place.host else place.shown
