"""`python -m docs.site` builds the site; `python -m docs.site pictures` draws its pictures."""

from __future__ import annotations

import sys

from docs.site.building import SITE, build
from docs.site.pictures import draw


def main() -> None:
    """Do what the first argument says.

    Raises:
        SystemExit: It says nothing known, or the site cannot be built without warnings.
    """
    match sys.argv[1:]:
        case []:
            build()
            print(f"The site is in {SITE}: open {SITE / 'index.html'}")
        case ["pictures"]:
            draw()
        case _:
            raise SystemExit(__doc__)


main()
