"""Checks the site that `make docs` built: every link and anchor has its target, and nothing is loaded from elsewhere.

    python tools/check_site.py build/site

MkDocs checks the links of Markdown. This checks the result: also the links of the theme, of the reference that is
generated from docstrings, and of HTML inside a page. Exit status 1 names every fault.
"""

import re
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {
    "audio": "src",
    "embed": "src",
    "iframe": "src",
    "img": "src",
    "script": "src",
    "source": "src",
    "video": "src",
    "object": "data",
}
LOADING_LINKS = {"stylesheet", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "icon", "manifest"}
FOREIGN_CSS = re.compile(r"""(?:@import\s+|url\(\s*)["']?((?:https?:)?//[^"')\s]+)""")


@dataclass
class Page:
    """What one HTML file refers to.

    Attributes:
        anchors: ids that a fragment can name.
        links: addresses that a reader can follow.
        loaded: addresses that a browser loads by itself.
    """

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)


class Reader(HTMLParser):
    """Collects the references of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.page = Page()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser."""
        values = {name: value or "" for name, value in attrs}
        self.page.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.page.links.append(values["href"])
        elif tag == "link" and LOADING_LINKS & set(values.get("rel", "").split()):
            self.page.loaded.append(values.get("href", ""))
        elif values.get(LOADED.get(tag, "")):
            self.page.loaded.append(values[LOADED[tag]])


def read(path: Path) -> Page:
    """Reads one HTML file."""
    reader = Reader()
    reader.feed(path.read_text())
    return reader.page


def is_foreign(address: str) -> bool:
    """Whether an address has a host or a scheme of its own."""
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def faults(site: Path) -> list[str]:
    """Returns one sentence for each fault."""
    pages = {path.resolve(): read(path) for path in sorted(site.rglob("*.html"))}
    found = [] if pages else [f"{site} has no page"]
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        found += [f"{name} loads {address} from another host" for address in page.loaded if is_foreign(address)]
        if name.name == "404.html":
            continue  # served for any address: its links begin at the root of a server
        for address in {*page.links, *page.loaded}:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                found.append(f"{name} links to {address}, which does not exist")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{name} links to {address}, which has no such anchor")
    for path in sorted(site.rglob("*.css")):
        foreign = FOREIGN_CSS.findall(path.read_text())
        found += [f"{path.relative_to(site)} loads {address} from another host" for address in foreign]
    return found


def main(arguments: list[str]) -> int:
    """Prints the faults of a site; returns the exit status."""
    found = faults(Path(arguments[0]))
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
