"""`shoal deploy`: writes the files that run a spider on servers."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from shoal.cli.display.screen import Screen
from shoal.cli.options import Command, archive_option, argument_option, kinds_with, setting_options, sink_option
from shoal.errors import UsageError
from shoal.text.secrets import masked

if TYPE_CHECKING:
    from shoal.deploy.plan import Plan
    from shoal.settings.table import Settings

EXTRAS = ("postgres", "redis", "serve")
# The extra that an archive or a sink needs, by the scheme of its URL.
SCHEME_EXTRAS = {"amqp": "amqp", "amqps": "amqp", "sqs": "sqs", "s3": "archive", "gs": "archive", "az": "archive"}


def deploy_options(command: Command) -> Command:
    """The options of the crawl, passed as one argument `plan`; DIR is passed as `folder`."""

    @functools.wraps(command)
    def wrapped(*, folder: str, force: bool, as_json: bool, **options: Any) -> None:
        from shoal.deploy.plan import check_folder

        target = Path(folder)
        check_folder(target, force=force)
        plan = _plan(**options)
        try:
            written = command(target, plan=plan)
        except OSError as error:
            raise UsageError(
                f"{error.filename or folder} cannot be written ({error.strerror}): name another folder, or make room"
            ) from None
        _say(written, target, as_json=as_json)

    decorated: Command = wrapped
    for decorate in (
        click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, for scripts: files."),
        setting_options,
        click.option("--force", is_flag=True, help="Replace existing files; passwords are kept."),
        sink_option("A sink of the crawl, as in `shoal run`; repeatable."),
        archive_option("Where raw pages are kept: s3://…", default="none"),
        kinds_with("Kinds of workers, a group for each.  [default: the spider's kind]"),
        click.option(
            "--workers", metavar="N", type=click.IntRange(1), default=2, show_default=True, help="Workers at the start."
        ),
        argument_option,
        click.option(
            "--spider",
            metavar="FILE[:SPIDER]",
            required=True,
            help="The spider that the fleet runs, or package.module:SPIDER.",
        ),
        click.argument("folder", metavar="DIR"),
    ):
        decorated = decorate(decorated)
    return decorated


@click.group(short_help="Write the files that run a spider on servers.")
def deploy() -> None:
    """Write the files that run a spider on servers, with the flags of its crawl.

    \b
    Example: shoal deploy compose books-fleet --spider books.py --rate 4/s
    """


@deploy.command(short_help="For Docker Compose: a fleet on one machine.")
@click.option("--image", metavar="NAME", help="The image's name.  [default: shoal- and the spider's name]")
@deploy_options
def compose(folder: Path, *, plan: Plan) -> list[str]:
    """For Docker Compose: Dockerfile, compose.yaml, the spider's files and passwords.

    \b
    Example: shoal deploy compose books-fleet --spider books.py --kinds http,browser
    """
    from shoal.deploy.writing import compose_files, copy_spider, make_passwords, write_files

    written = write_files(folder, compose_files(plan))
    return [*written, *copy_spider(plan, folder), *make_passwords(folder)]


@deploy.command(short_help="For Kubernetes: a Helm chart, and plain manifests.")
@click.option("--image", metavar="NAME", help="The image in your registry.  [default: shoal- and the spider's name]")
@deploy_options
def k8s(folder: Path, *, plan: Plan) -> list[str]:
    """For Kubernetes: a Helm chart with values for the spider, the same as plain manifests, Dockerfile, passwords.

    \b
    Example: shoal deploy k8s books-fleet --spider books.py --image registry.example.com/books:1
    """
    from shoal.deploy.kubernetes import kubernetes_files
    from shoal.deploy.writing import READER_TOKEN, copy_spider, make_passwords, write_files

    # Built before anything is written: the spider's name may be refused.
    new = list(kubernetes_files(plan))
    return [*write_files(folder, new), *copy_spider(plan, folder), *make_passwords(folder, READER_TOKEN)]


@deploy.command(short_help="For systemd: machines without containers.")
@deploy_options
def systemd(folder: Path, *, plan: Plan) -> list[str]:
    """For systemd: units of the crawl, its workers and the dashboard, and a script that installs them.

    \b
    Example: shoal deploy systemd books-fleet --spider books.py
    """
    from shoal.deploy.systemd import systemd_files
    from shoal.deploy.writing import copy_spider, make_passwords, write_files

    written = write_files(folder, systemd_files(plan))
    (folder / "install.sh").chmod(0o755)
    return [*written, *copy_spider(plan, folder), *make_passwords(folder)]


def _plan(*, spider: str, arguments: dict[str, str], flags: dict[str, Any], **options: Any) -> Plan:
    """What the deployment runs. The spider is loaded as in a run: a mistake shows here, not on a server."""
    from shoal.cli.display.next_commands import run_words
    from shoal.deploy.plan import Plan, kinds_of_run, kinds_of_workers, label_of, worker_groups
    from shoal.insight.stats import kinds_of
    from shoal.run.intakes import settings_of
    from shoal.spider.loading import load_spider, made
    from shoal.spider.spider import spider_name

    if "proxies" in flags:
        raise UsageError(
            "--proxies names a file with passwords, which must not be in an image: mount it as a secret, and add"
            " --proxies to the command of `shoal run` in the file written here"
        )
    kind = load_spider(spider)
    settings = settings_of(kind, flags).values
    own = spider_name(kind)
    made(kind, arguments)
    named, code = kinds_of(kind, settings), _code_of(spider)
    name = label_of(own)
    return Plan(
        reference=code.reference,
        spider=own,
        kinds=named,
        name=name,
        folder=code.folder,
        files=code.files,
        requirement=code.requirement,
        run=(*run_words(code.reference, flags, arguments=arguments, places=_places(options)), *kinds_of_run(named)),
        groups=worker_groups(kinds_of_workers(named, given=options["kinds"]), count=options["workers"]),
        grace_seconds=settings.grace_seconds,
        image=options.get("image") or f"shoal-{name}",
        extras=_extras(options, settings),
    )


class _SpiderCode(NamedTuple):
    """The spider's code for the servers: files to copy, or a package for pip."""

    reference: str
    folder: Path
    files: tuple[Path, ...]
    requirement: str = ""


def _code_of(spider: str) -> _SpiderCode:
    from shoal.deploy.plan import files_of, requirement_of, settings_files

    source, _, class_name = spider.partition(":")
    if not source.endswith(".py"):
        return _SpiderCode(spider, Path.cwd(), settings_files(Path.cwd()), requirement_of(source))
    file = Path(source)
    return _SpiderCode(":".join(filter(None, (file.name, class_name))), file.resolve().parent, files_of(file))


def _places(options: dict[str, Any]) -> list[tuple[str, str]]:
    """The flags of the crawl's archive and sinks. Refuses a local folder, and URLs with a password."""
    archive = options["archive"]
    if archive is not None and "://" not in archive:
        raise UsageError(f"--archive {archive} is a folder, which machines do not share: give s3://…")
    given = [("--archive", archive)] if archive is not None else []
    given += [("--sink", url) for url in options["sinks"]]
    for flag, url in given:
        if masked(url) != url:
            raise UsageError(
                f"{flag} {masked(url)} has a password, which would be written to a shared file: leave it"
                " out, and give it to `shoal run` and `shoal serve` on the servers"
            )
    return given


def _extras(options: dict[str, Any], settings: Settings) -> tuple[str, ...]:
    """The extras of shoal that the image needs. Refuses a local folder as retention_archive."""
    log = settings.retention_archive
    if log and "://" not in log:
        raise UsageError(f"retention_archive = {log!r} is a folder, which is lost with its container: give s3://…")
    urls = [options["archive"] or "", log, *options["sinks"]]
    found = {"parquet"} if log else set()
    found |= {SCHEME_EXTRAS[scheme] for url in urls if (scheme := url.partition("://")[0]) in SCHEME_EXTRAS}
    return tuple(sorted({*EXTRAS, *found}))


def _say(written: list[str], folder: Path, *, as_json: bool) -> None:
    screen = Screen()
    if as_json:
        screen.json({"files": [str(folder / path) for path in written]})
        return
    for path in written:
        screen.line(str(folder / path))
