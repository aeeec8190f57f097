"""The text of web pages that counts: blocks of the main text, without markup, advertisements, stamps and counters.

People's rules say which parts of a page to keep and to leave out. Without a rule to keep, the main text is what
trafilatura finds; where that is too little of a page, such as a table of prices, it is all text outside of what is
plainly around it. Noise is taken out of what is compared, never out of what is shown.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from copy import deepcopy
from itertools import dropwhile, islice
from typing import Any, NamedTuple
from urllib.parse import urljoin

from cssselect import HTMLTranslator, SelectorError, parse
from cssselect.parser import CombinedSelector
from lxml import etree, html

from clarion.feeds.channels import Rules
from clarion.model.errors import PermanentError

_MOST_ELEMENTS = 10_000  # of a page whose main text is looked for; the text of a larger one is taken whole
_MOST_ELEMENTS_FOR_RULES = 10_000  # a selector may take the square of their number
_MOST_DEPTHS = 200_000  # of all elements together, where an XPath is followed
_MOST_RULES = 20
_MOST_RULE_CHARACTERS = 300
_MOST_BLOCKS = 6000  # what follows is not looked at
_MAIN_SHARE = 0.9  # of the main text that the main part of a page has at least
_PAGE_SHARE = 0.4  # of all the text of a page, likewise
_LEAST_MAIN_TEXT = 200  # characters


class BadRules(PermanentError):
    """These rules are no selectors that can be followed; nothing was done."""


class NothingKept(PermanentError):
    """No part of the page is what the rules keep."""


class Block(NamedTuple):
    """A piece of text between two breaks of a page, the heading above it, the first link in it, and whether it is
    around the main text rather than in it."""

    text: str
    heading: str
    link: str
    around: bool = False


# Rules.

_PAST_SELF = re.compile(r"//|\.\.|\b(?:ancestor|descendant|following|preceding|parent)\b")
_FAR = re.compile(r"\b(?:ancestor|following|preceding)(?:-or-self|-sibling)?\s*::|\$")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_FUNCTIONS = _set(
    "text node contains starts-with normalize-space not position last count string concat string-length substring "
    "substring-before substring-after translate name local-name and or"
)


_COMPLEX = re.compile(r":(?:not|has|is|where|matches)\([^)]*[\s>+~]")
_SAMPLE = etree.fromstring("<html><body><p class='a'>a</p></body></html>")


def check_rules(rules: Rules) -> None:
    """Return where every rule is a selector that can be followed in bounded time; BadRules otherwise."""
    if len(rules.keep) + len(rules.leave_out) > _MOST_RULES:
        raise BadRules(f"a channel has at most {_MOST_RULES} rules; nothing was done")
    for rule in (*rules.keep, *rules.leave_out):
        _selector(rule)


def _selector(rule: str) -> Callable[[Any], list[Any]]:
    """Return a rule ready to be followed: an XPath where it starts with `/`, `./` or `(`, else a CSS selector."""
    rule = rule.strip()
    if not rule or len(rule) > _MOST_RULE_CHARACTERS:
        raise BadRules(f"a rule has from 1 to {_MOST_RULE_CHARACTERS} characters, not {len(rule)}; nothing was done")
    is_path = rule.startswith(("/", "./", "("))
    if _costly(rule) if is_path else _COMPLEX.search(rule) or rule.count(":nth") > 2:
        raise BadRules(
            f"the rule {rule!r} may take too long: what is in [ ] of an XPath and ( ) of CSS may be about an element, "
            "its attributes and its children only, and // comes at most twice; CSS has siblings: h2 + p"
        )
    try:
        if is_path:
            path = etree.XPath(rule, regexp=False)
            if not isinstance(path(_SAMPLE), list):
                raise BadRules(f"the rule {rule!r} gives a value, not parts of a page; nothing was done")
            return lambda tree: _by_path(path, tree)
        trees = [selector.parsed_tree for selector in parse(rule) if not selector.pseudo_element]
        if not trees:
            raise BadRules(f"the rule {rule!r} names no element; nothing was done")
        for tree in trees:
            _matching(tree, _SAMPLE)
    except (etree.XPathError, SelectorError, SyntaxError, ValueError, RecursionError) as error:
        raise BadRules(f"the rule {rule!r} is no {'XPath' if is_path else 'CSS selector'}: {error}") from None
    return lambda page: [element for tree in trees for element in _matching(tree, page)]


def _by_path(path: etree.XPath, tree: Any) -> list[Any]:
    depths = sum(sum(1 for _ in element.iterancestors()) for element in tree.iter())
    if depths > _MOST_DEPTHS:  # libxml2 looks for each element below each other in a list of what it has
        raise NothingKept("the elements of the page are too deep within each other for an XPath; CSS can")
    found = path(tree)
    return [element for element in found if isinstance(element, etree._Element)] if isinstance(found, list) else []


def _matching(selector: Any, tree: Any) -> set[Any]:
    """Return the elements of a tree that a CSS selector is about, in time that grows with their number alone: libxml2
    would take the cube of it for siblings, and the square for what is within each other."""
    if not isinstance(selector, CombinedSelector):
        path = etree.XPath(f"descendant-or-self::{HTMLTranslator().xpath(selector)}", regexp=False)
        found = path(tree)
        return {one for one in found if isinstance(one, etree._Element)} if isinstance(found, list) else set()
    left, right = _matching(selector.selector, tree), _matching(selector.subselector, tree)
    match selector.combinator:
        case ">":
            return {one for one in right if one.getparent() in left}
        case "+":
            return {one for one in right if one.getprevious() in left}
        case "~":
            after = set()
            for parent in {one.getparent() for one in left} - {None}:
                children = dropwhile(lambda one: one not in left, parent)
                after |= right.intersection(islice(children, 1, None))
            return after
        case _:
            return {one for one in right if any(above in left for above in one.iterancestors())}


def _costly(path: str) -> bool:
    """Return whether an XPath may look at all of a page for each of its elements, or calls what is not for rules."""
    path = re.sub(r"\"[^\"]*\"|'[^']*'", "''", path)
    inside = "".join(re.findall(r"\[[^\[\]]*\]", path))
    nested = re.search(r"\[[^\]]*\[[^\]]*\[", path) is not None
    calls = set(re.findall(r"([\w:-]+)\s*\(", path))
    far = bool(_PAST_SELF.search(inside) or _FAR.search(path))
    return nested or far or path.count("//") + path.count("descendant") > 2 or not calls <= _FUNCTIONS


# From a page to its blocks.

_DROPPED = _set(
    "script style noscript template svg math iframe object embed canvas audio video map head input button select "
    "textarea datalist progress meter dialog nav menu"
)
_AROUND = frozenset(("header", "footer", "aside"))  # where they are a page's and not an article's
_ROLES = _set("navigation banner contentinfo complementary search dialog alertdialog menu menubar")
_BREAKS = _set(
    "address article aside blockquote body br caption center dd details div dl dt fieldset figcaption figure footer "
    "form h1 h2 h3 h4 h5 h6 header hr html legend li main ol p pre section summary table tbody tfoot thead tr ul "
    "title head item list quote row lb code"  # the last: of trafilatura, whose `head` is a heading
)
_HEADINGS = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))
_CELLS = frozenset(("td", "th", "cell"))
_AD_WORDS = _set(
    "ad ads advert adverts advertisement advertising adsense adslot adbox adunit sponsor sponsored promoted taboola "
    "outbrain doubleclick cookie cookies gdpr consent captcha newsletter breadcrumb breadcrumbs paywall"
)
_ASIDES = re.compile(
    r"(?:social|share|sharing)(?:[-_](?:links?|buttons?|bar|icons?|media|tools?|counts?|counter))?"
    r"|(?:related|recommended|trending|popular|most-?read|more|latest)[-_](?:posts?|articles?|stories|news|content|links)"
    r"|related|recommended|recommendations|trending|mostread|sharedaddy|jp-relatedposts|addtoany\w*|addthis\w*|view-?counts?|viewcounter|hit-?counter|sr-only"
    r"|widget(?:_\w+)?|tag-?cloud|sidebar|site-?footer|page-?footer|topbar|visually-hidden|skip-?link|back-to-top|popup|modal|toast",
    re.IGNORECASE,
)
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)


def page_blocks(text: str, url: str, rules: Rules) -> tuple[str, list[Block]]:
    """Return the title of a page and the blocks of its text; NothingKept where rules keep no part of it."""
    tree = parse_page(text)
    if tree is None:
        return "", []
    title = " ".join((tree.findtext(".//title") or "").split())
    if rules.keep or rules.leave_out:
        roots = _ruled(tree, rules)
        if rules.keep:
            return title, [block for root in roots for block in _blocks(root, url)][:_MOST_BLOCKS]
    _drop_around(tree)
    placed = _placed_blocks(tree, url)
    main = _main_part(tree, placed)
    if main is tree:
        return title, [block for block, _ in placed]
    return title, [block._replace(around=not _is_within(main, element)) for block, element in placed]


def _is_within(main: Any, element: Any) -> bool:
    return element.tag == "h1" or element is main or any(above is main for above in element.iterancestors())


def plain_text(markup: str) -> str:
    """Return the text of a piece of HTML, a line for each of its blocks."""
    if "<" not in markup and "&" not in markup:
        return markup
    tree = parse_page(markup)
    return "" if tree is None else "\n".join(block.text for block in _blocks(tree, ""))


def parse_page(text: str) -> Any:
    """Return the tree of a page; None where there is none."""
    text = text.replace("\0", "")
    if not text.strip():
        return None
    parser = html.HTMLParser(
        encoding="utf-8", no_network=True, remove_comments=True, remove_pis=True, recover=True, huge_tree=False
    )
    try:
        return etree.fromstring(text.encode("utf-8", "replace"), parser)
    except (etree.XMLSyntaxError, ValueError):
        return None


def _ruled(tree: Any, rules: Rules) -> list[Any]:
    """Take what rules leave out off a page, and return the parts that they keep, none of which is within another."""
    if sum(1 for _ in tree.iter()) > _MOST_ELEMENTS_FOR_RULES:
        raise NothingKept(f"a page with rules has at most {_MOST_ELEMENTS_FOR_RULES} elements; this one has more")
    for rule in rules.leave_out:
        _remove(_found(rule, tree))
    if not rules.keep:
        return []
    kept = {element for rule in rules.keep for element in _found(rule, tree)}
    roots = [e for e in tree.iter() if e in kept and not any(above in kept for above in e.iterancestors())]
    if not roots:
        raise NothingKept(f"no part of the page is what its rules keep: {', '.join(rules.keep)}")
    return roots


def _found(rule: str, tree: Any) -> list[Any]:
    try:
        return _selector(rule)(tree)
    except etree.XPathError as error:
        raise NothingKept(f"the rule {rule!r} cannot be followed on this page: {error}") from error


def _remove(elements: Iterable[Any]) -> None:
    """Take elements off a page, but not the text after them, which is not of them. All at once: one by one, that text
    would be copied for every other."""
    removed = set(elements)
    for parent in {above for element in removed if (above := element.getparent()) is not None}:
        before: Any = None
        pieces: list[str] = []
        for element in (*parent, None):
            if element in removed:
                pieces.append(element.tail or "")
                parent.remove(element)
                continue
            if pieces and before is None:
                parent.text = (parent.text or "") + "".join(pieces)
            elif pieces:
                before.tail = (before.tail or "") + "".join(pieces)
            before, pieces = element, []


def _drop_around(tree: Any) -> None:
    """Take off a page what is plainly not its text: hidden parts, navigation, advertisements, what asks to share it."""
    lengths: dict[Any, int] = {}  # of the text of such parts
    read = 0
    for event, element in etree.iterwalk(tree, events=("start", "end")):
        if event == "start":
            if element.tag not in ("html", "body", "main", "article") and _is_around(element):
                lengths[element] = -read
            read += len(element.text or "")
        else:
            if element in lengths:
                lengths[element] += read
            if element is not tree:
                read += len(element.tail or "")
    _remove([one for one, length in lengths.items() if length * 2 <= read])  # a whole page may be marked by mistake


def _is_around(element: Any) -> bool:
    if element.tag in _DROPPED:
        return bool(element.tag != "head")  # its title is looked for; it is no text of the page
    if element.tag in _AROUND and not any(above.tag in ("main", "article") for above in element.iterancestors()):
        return True
    named = element.attrib
    if not named:
        return False
    if named.get("role") in _ROLES or "hidden" in named or named.get("aria-hidden") == "true":
        return True
    if _HIDDEN.search(named.get("style", "")):
        return True
    for name in f"{named.get('class', '')} {named.get('id', '')}".split():
        if _ASIDES.fullmatch(name) or not _AD_WORDS.isdisjoint(re.split(r"[-_]+", name.lower())):
            return True
    return False


def _main_part(tree: Any, placed: list[tuple[Block, Any]]) -> Any:
    """Return the element that has the main text of a page: the innermost that holds nearly all of the text which
    trafilatura finds, and no small part of the page; the page itself where it finds little.

    So what is around an article is left out, and what is within it stays, though it be no prose: prices, tables.
    """
    from trafilatura import bare_extraction

    if sum(1 for _ in islice(tree.iter(), _MOST_ELEMENTS + 1)) > _MOST_ELEMENTS:
        return tree
    try:
        found = bare_extraction(deepcopy(tree), include_comments=False, favor_recall=True, fast=True)
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, RecursionError, etree.LxmlError):
        return tree  # it stumbles over some pages, and they have text all the same
    body = getattr(found, "body", None)
    if body is None:
        return tree
    main = {block.text for block in _blocks(body, "")}
    within: dict[Any, int] = {}  # how much of the main text each element has
    total = whole = 0
    sizes: dict[Any, int] = {}
    for block, element in placed:
        size = len(block.text)
        whole += size
        found_size = size if block.text in main else 0
        total += found_size
        for above in (element, *element.iterancestors()):
            within[above] = within.get(above, 0) + found_size
            sizes[above] = sizes.get(above, 0) + size
    if total < _LEAST_MAIN_TEXT:
        return tree
    best = tree
    for element in tree.iter(etree.Element):  # from the outermost on; those that hold nearly all are one in another
        if within.get(element, 0) >= _MAIN_SHARE * total and sizes[element] >= _PAGE_SHARE * whole:
            best = element
    return best


def _blocks(tree: Any, url: str) -> list[Block]:
    return [block for block, _ in _placed_blocks(tree, url)]


def _placed_blocks(tree: Any, url: str) -> list[tuple[Block, Any]]:
    """Return the text of a tree cut at its breaks, in order, each with the element that it is in."""
    blocks: list[tuple[Block, Any]] = []
    pieces: list[str] = []
    heading = link = ""

    def cut(element: Any) -> str:
        nonlocal link
        text = " ".join("".join(pieces).split()).strip(" |")
        pieces.clear()
        if text and len(blocks) < _MOST_BLOCKS:
            blocks.append((Block(text, heading, link), element))
        link = ""
        return text

    skipped: Any = None
    for event, element in etree.iterwalk(tree, events=("start", "end")):
        tag = element.tag
        if event == "start":
            if skipped is None and tag in _DROPPED and not (tag == "head" and element.get("rend")):
                skipped = element
            if skipped is not None:
                continue
            if tag in _BREAKS:
                cut(tree if element is tree else element.getparent())
            elif tag in _CELLS:
                pieces.append(" | ")
            elif tag in ("a", "ref") and not link:
                link = _absolute(url, element.get("href") or element.get("target") or "")
            if element.text:
                pieces.append(element.text)
            continue
        if skipped is None and tag in _BREAKS:
            text = cut(element)
            if text and (tag in _HEADINGS or tag == "head"):
                heading = text[:200]
        if skipped is element:
            skipped = None
        if skipped is None and element.tail and element is not tree:
            pieces.append(element.tail)
    cut(tree)
    return blocks


def _absolute(url: str, link: str) -> str:
    link = link.strip()
    if not link or link.startswith("#"):
        return ""
    try:
        found = urljoin(url, link)
    except ValueError:
        return ""
    return found if found.startswith(("http://", "https://")) and len(found) <= 2000 else ""


# What counts of a text.

_MONTH = (
    r"(?:jan(?:uary|uar)?|feb(?:ruary|ruar)?|mar(?:ch)?|märz|apr(?:il)?|may|mai|june?|juni|july?|juli|aug(?:ust)?"
    r"|sep(?:t(?:ember)?)?|o[ck]t(?:ober)?|nov(?:ember)?|de[cz](?:ember)?)\.?"
)
_DATE = (
    r"(?:(?:(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?,?\s+)?"
    rf"(?:\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}|\d{{1,2}}[-/.]\d{{1,2}}[-/.]\d{{2,4}}"
    rf"|\d{{1,2}}(?:st|nd|rd|th|\.)?\s+{_MONTH}(?:,?\s+\d{{4}})?|{_MONTH}\s+\d{{1,2}}(?:st|nd|rd|th)?(?:,?\s+\d{{4}})?))"
)
_CLOCK = r"(?:\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:\s?[ap]\.?m\.?|\s?uhr)?)"
_ZONE = r"(?:\s?(?:utc|gmt|z|[a-z]{1,3}st|[a-z]{1,3}dt|cet|cest)\b|\s?[+-]\d{2}:?\d{2})?"
_STAMP = rf"(?:{_DATE}(?:(?:,|\s|t|at|um|[-\u2013]){{0,4}}{_CLOCK}{_ZONE})?|{_CLOCK}{_ZONE}(?:,?\s+(?:on\s+)?{_DATE})?)"
_COUNT = r"\d(?:[\d.,' \u00a0\u202f]{0,15}\d)?\s?(?:k|m|mio|tsd)?"
_UNIT = r"(?:s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|wks?|weeks?|mos?|months?|y|yrs?|years?)"
_COUNTED = (
    r"(?:page\s?views?|views?|reads|likes?|dislikes?|shares?|comments?|repl(?:y|ies)|reactions?|followers?"
    r"|subscribers?|downloads?|visitors?|visits?|hits|claps?|upvotes?|retweets?|reposts?|bookmarks?|stargazers?"
    r"|reviews?|ratings?|posts?"
    r"|guests?|users?\sonline|(?:people|users?|others)\s(?:are\s)?(?:viewing|watching|reading|looking)[a-z ]*"
    r"|items? in (?:your )?(?:cart|basket)|cart|basket|warenkorb"
    r"|aufrufe|kommentare?|antworten|vues|commentaires?|visitas|comentarios?)"
)
_ABOUT = r"(?:(?:about|over|almost|around|less than)\s+)?"
_EINHEIT = r"(?:sekunden?|minuten?|stunden?|tage?n?|wochen?|monate?n?|jahre?n?)"
_UNITE = r"(?:secondes?|minutes?|heures?|jours?|semaines?|mois|ans?)"
_UNIDAD = r"(?:segundos?|minutos?|horas?|d[ií]as?|semanas?|meses|mes|años?)"
_AGO = (
    rf"{_ABOUT}(?<![\w.,]){_COUNT}\s*{_UNIT}\.?(?:,?\s+(?:and\s+)?\d+\s*{_UNIT})?\s+ago\b"
    rf"|\bvor\s+\d+\s+{_EINHEIT}\b|\bil y a\s+\d+\s+{_UNITE}\b|\bhace\s+\d+\s+{_UNIDAD}\b"
)
_AGO_IN_WORDS = (
    rf"{_ABOUT}\b(?:an?|one|a few)\s+{_UNIT}\s+ago\b|\bjust now\b|\b(?:a few )?moments? ago\b"
    rf"|\bvor\s+(?:eine[rmn]?|wenigen)\s+{_EINHEIT}\b|\bil y a\s+une?\s+{_UNITE}\b|\bhace\s+una?\s+{_UNIDAD}\b"
)
_MADE = (  # what a stamp is of that says nothing about the text
    r"(?:(?:page|site|data|this page was|it is)\s+)?(?:last\s+|zuletzt\s+|letzte\s+)?(?:updated?|modified|modification"
    r"|changed|change|edited|edit|generated|refreshed|rendered|retrieved|fetched|accessed|checked|built|observed"
    r"|measured|currently|as of|stand|aktualisiert|aktualisierung|geändert|änderung|mise? à jour(?: le)?"
    r"|actualizado(?: el)?|(?:current|server|local)\s+time|timestamp)"
)
_LABELLED: list[tuple[str, str]] = [  # noise wherever it is, in lines of a file too
    (
        "updat|modif|chang|edit|generat|refresh|render|retriev|fetch|access|check|built|observ|measur|current|as of"
        "|stand|aktuali|änder|jour|actualiz|time",
        rf"\b{_MADE}(?:[_ ](?:on|at|by|am|time|date|from))*[\"']?\s*[:=]?\s*[\"']?(?:{_STAMP}|\d{{10,13}}\b)[\"']?",
    ),
    (
        "request|session|trace|ray|correlation|csrf|xsrf|visitor",
        r"\b(?:request|session|trace|ray|correlation|csrf|xsrf|visitor)[ _-]?(?:id|token|no\.?)?[\"']?\s*[:=#]\s*[\"']?"
        r"[\w./+=-]{6,}[\"']?",
    ),
    ("nonce|csrf|sessid|sessionid", r"\b(?:nonce|csrf|jsessionid|phpsessid)\s*[:=]\s*[\w./+=-]{6,}"),
    (
        "generated|rendered|created|loaded|served|processed|executed|took|queries|time",
        r"\b(?:(?:page\s+)?(?:generated|rendered|created|loaded|served|processed|executed)|took|\d+ queries|time)"
        r"(?:\s+in\b|\s*:)?\s*[\d.,]{1,12}\s*(?:ms|s|sec|seconds?|milliseconds?)\b",
    ),
]
_COUNTS = (
    "view|read|like|share|comment|repl|reaction|follow|subscrib|download|visit|hits|clap|vote|tweet|repost|bookmark|starg"
    "|review|rating|post|guest|online|watching|looking|cart|basket|warenkorb|aufrufe|kommentar|antwort|vues|comentario"
)
_NOISE: list[tuple[str, str]] = [  # words, one of which is there in part or whole where the noise is; and the noise
    ("ago|vor |il y a|hace ", rf"(?:\b{_MADE}:?\s*)?(?:{_AGO})"),
    ("ago|just now|vor |il y a|hace ", rf"(?:\b{_MADE}:?\s*)?(?:{_AGO_IN_WORDS})"),
    (
        "today|yesterday|last",
        r"\b(?:posted|published|released(?: this)?|updated|added|active|seen)\s+"
        r"(?:today|yesterday|last (?:week|month|year))\b",
    ),
    ("up|online|listed|active", rf"\b(?:online|listed|active|up)\s+(?:(?:for|since)\s+)?\d{{1,4}}\s*{_UNIT}\b"),
    (
        "end|start|close|expire|refresh",
        rf"\b(?:ends?|starts?|closes?|expires?|refresh(?:es|ing)?)\s+in:?\s+"
        rf"(?:\d{{1,4}}\s*{_UNIT}\b[ ,:]{{0,2}}|\d{{1,4}}(?::\d{{1,4}}){{1,3}}){{1,4}}",
    ),
    *_LABELLED,
    # stamps to the second: no person wrote them
    (
        ":",
        rf"\b{_DATE}(?:,|\s|t|at){{0,4}}\d{{1,2}}:\d{{2}}:\d{{2}}(?:[.,]\d{{1,9}})?{_ZONE}"
        rf"|^\d{{1,2}}:\d{{2}}:\d{{2}}{_ZONE}$",
    ),
    # counters
    (
        "stars|forks|watchers",
        r"(?<![\w.,])(?:\d{1,3}(?:[,.]\d{3}){1,3}|\d{3,9}|\d[\d.]{0,5}k)\s*(?:stars|forks|watchers)\b",
    ),
    ("browsing|online|viewing|here", r"\b(?:users|members|people)\s+(?:browsing|online|viewing|here)\b.*$"),
    (_COUNTS, rf"(?<![\w.,]){_COUNT}\s*\+?\s*{_COUNTED}\b"),
    (_COUNTS, rf"\b{_COUNTED}\s*(?::\s*{_COUNT}|\(\s*{_COUNT}\s*\))(?![\w%])"),
    ("queries|memory", r"\b(?:queries|peak memory usage|memory):\s*[\d.]{1,9}\s*(?:[kmg]i?b)?\b"),
    ("👍|👎|❤|♥|★|☆|👁|💬|🔥", rf"[👍👎❤♥★☆👁💬🔥]\ufe0f?\s*{_COUNT}\b"),
    # whose page it is, and what pages have beside their text
    ("©|(c)|copyright", r"(?:©|\(c\)|copyright)\s*(?:©\s*)?(?:\d{4}\s*[-\u2013\u2014]\s*)?\d{4}"),
    ("retrieved", r"^retrieved from\b.*$"),
]
_BESIDE = re.compile(
    r"\W*(?:advertisements?|anzeige|werbung|publicité|publicidad|sponsored(?: content)?|ad"
    r"|(?:read|show|load|see|learn|view) (?:more|all)|continue reading|reply|share|like|permalink|quote|report|edit"
    r"|sign in|log in|subscribe|weiterlesen|mehr lesen|lire la suite|leer más)\W*",
    re.IGNORECASE,
)
_NOISES, _LINE_NOISES = (
    [(words.split("|"), r"\d" in noise, re.compile(noise, re.IGNORECASE)) for words, noise in noises]
    for noises in (_NOISE, _LABELLED)
)
_DIGIT = re.compile(r"\d")
_LIKE = str.maketrans("\u2018\u2019\u201c\u201d\u2013\u2014", "''\"\"--", "\u00ad\u200b\u200c\u200d\u2060\ufeff")
_SYMBOLS_ONLY = re.compile(r"[\W_]*")


def what_counts(text: str, *, line: bool = False, noisy: int = 20_000) -> str:
    """Return a text as it is compared: with spaces, quotes and dashes of one kind, and without noise, which is looked
    for in so many of its first characters.

    A line of a file has less noise: there, numbers and times count unless a label says what they are of.
    """
    text = " ".join(unicodedata.normalize("NFC", text).translate(_LIKE).split())
    start, rest = text[:noisy], text[noisy:]
    lower, has_digit = start.lower(), _DIGIT.search(start) is not None
    for words, needs_digit, noise in _LINE_NOISES if line else _NOISES:
        if (has_digit or not needs_digit) and any(word in lower for word in words):
            start = noise.sub(" ", start)
    text = " ".join(start.split()) + rest
    if line:
        return text
    if len(text) < 40 and _BESIDE.fullmatch(text):
        return ""
    if _SYMBOLS_ONLY.fullmatch(text) and not any(unicodedata.category(sign) == "Sc" for sign in text):
        return ""
    return text
