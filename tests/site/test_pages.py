"""Pages of the repository, as the builder of the site gets them."""

from __future__ import annotations

import re

import pytest

import stratagem
from docs.site.building import SETTINGS
from docs.site.links import relinked, target
from docs.site.lists import indented
from docs.site.pages import pages, places, site_place
from docs.site.pictures import FOLDER, pictures
from docs.site.public_names import FOLDERS, KINDS, members
from docs.site.reference import reference_pages
from docs.site.sources import source_pages
from docs.site.timelines import schedule


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("- one\n  more\n", "-   one\n    more\n"),
        ("1. one\n\n   more\n", "1.  one\n\n    more\n"),
        ("- one\n  - two\n    more\n", "-   one\n    -   two\n        more\n"),
        ("- one\n\n  ```sh\n    - x\n  ```\n", "-   one\n\n    ```sh\n      - x\n    ```\n"),
        ("- one\n\nno item\n", "-   one\n\nno item\n"),
        ("```\n- code\n  more\n```\n", "```\n- code\n  more\n```\n"),
        ("10. ten\n    more\n", "10. ten\n    more\n"),
        ("a - b\n", "a - b\n"),
    ],
)
def test_items_of_lists_are_indented_by_four_columns(written: str, read: str) -> None:
    assert indented(written) == read


def test_links_in_code_are_none() -> None:
    page = "[a](b)\n```\n[a](b)\n```\n[a](b), [c](d)\n"
    assert relinked(page, str.upper) == "[a](B)\n```\n[a](b)\n```\n[a](B), [c](D)\n"


@pytest.mark.parametrize(
    ("link", "place"),
    [
        ("guide/README.md#pages", "docs/guide/README.md"),
        ("guide", "docs/guide/README.md"),
        ("../README.md", "README.md"),
        ("dashboard/demo.png", "docs/dashboard/demo.png"),
        ("../examples/dlrm.py", "source/examples/dlrm.py.md"),
    ],
)
def test_a_link_leads_to_a_page_of_the_site(link: str, place: str) -> None:
    assert site_place(target("docs/faq.md", link), {*places()}) == place


@pytest.mark.parametrize("link", ["https://a.b/c", "mailto:a@b", "#heading"])
def test_other_links_lead_nowhere_in_the_tree(link: str) -> None:
    assert target("docs/faq.md", link) == ""


def test_all_links_of_pages_lead_to_pages() -> None:
    texts = pages()
    known = {*texts, *source_pages(texts)}
    for place, text in texts.items():
        led = {target(place, link) for link in re.findall(r"\]\(([^)\s]+\.md)", text)}
        assert led - known - {""} == set(), place


def test_the_navigation_has_every_page_once() -> None:
    named = re.findall(r'= "([\w/.-]+\.md)"', SETTINGS.read_text(encoding="utf-8"))
    assert sorted(named) == sorted([*places(), *reference_pages()])


def test_each_public_name_is_of_one_kind() -> None:
    named = [name for kind in KINDS for name in kind.names]
    assert sorted([*named, *FOLDERS]) == sorted([*stratagem.__all__, "stratagem_deploy"])


@pytest.mark.parametrize("name", FOLDERS)
def test_each_public_module_says_what_is_public(name: str) -> None:
    assert members(name if name == "stratagem_deploy" else f"stratagem.{name}")


@pytest.mark.parametrize("name", pictures())
def test_a_picture_is_what_its_source_draws(name: str) -> None:
    drawn = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert drawn == pictures()[name], "draw it by `python -m docs.site pictures`"


@pytest.mark.parametrize(("ahead", "steps"), [(None, (9, 4)), (1, (5, 4)), (0, (4, 4))])
def test_workers_take_as_many_steps_as_they_may(ahead: int | None, steps: tuple[int, int]) -> None:
    fast, slow = schedule((1.0, 2.2), ahead, 9.0)
    assert (len(fast), len(slow)) == steps
    for number, step in enumerate(fast if ahead is not None else []):
        ended = sum(other.ends <= step.begins for other in slow)
        assert number - ended <= (ahead or 0)
