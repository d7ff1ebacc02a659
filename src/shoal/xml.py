"""XML that is not trusted: parsed without entities, so that a small document cannot become a large one."""

from __future__ import annotations

from xml.etree import ElementTree
from xml.parsers import expat


class UnsafeXml(ValueError):  # noqa: N818 -- reads as what it is
    """The document declares entities."""


def parse_xml(body: bytes) -> ElementTree.Element:
    """The root element of a document in UTF-8, whatever it declares.

    Raises ValueError when the document is not well-formed or declares entities."""
    builder = ElementTree.TreeBuilder()
    parser = expat.ParserCreate("utf-8", "}")
    parser.buffer_text = True
    parser.StartElementHandler = lambda name, attrs: builder.start(_clark(name), _clark_all(attrs))
    parser.EndElementHandler = lambda name: builder.end(_clark(name))
    parser.CharacterDataHandler = builder.data
    parser.EntityDeclHandler = _refuse_entity
    try:
        parser.Parse(body, True)
    except expat.ExpatError as error:
        raise ValueError(f"not well-formed XML: {error}") from None
    return builder.close()


def _clark(name: str) -> str:
    return "{" + name if "}" in name else name


def _clark_all(attributes: dict[str, str]) -> dict[str, str]:
    return {_clark(name): value for name, value in attributes.items()}


def _refuse_entity(*_: object) -> None:
    raise UnsafeXml("the document declares entities; they are not expanded")
