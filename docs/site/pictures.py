"""The pictures of the pages on concepts: `python -m docs.site pictures` writes them."""

from __future__ import annotations

from pathlib import Path

from docs.site.drawing import Drawing
from docs.site.timelines import Step, schedule

FOLDER = Path(__file__).resolve().parents[1] / "pictures"
SECOND = 56  # columns of a second
DURATIONS = (1.0, 2.2)  # seconds of a step, of each worker
LAST = 9.0


def draw() -> None:
    """Write all pictures."""
    for name, picture in pictures().items():
        (FOLDER / f"{name}.svg").write_text(picture, encoding="utf-8")


def pictures() -> dict[str, str]:
    """Return the text of each picture by its name."""
    return {"cluster": cluster(), "consistency": consistency(), "once": once()}


def cluster() -> str:
    """Return workers that train variables on servers."""
    drawing = Drawing(680, 290, "Two workers send gradients to two servers and get new values")
    for number, left in enumerate((20, 360)):
        drawing.box(left, 15, 300, 74, "worker")
        drawing.text(left + 150, 38, f"worker {number}", "title")
        drawing.text(left + 150, 58, "your script: model, loss, data")
        drawing.text(left + 150, 78, "computes gradients on its devices")
        drawing.box(left, 190, 300, 84, "server")
        names = ("users.weight", "out.bias") if number == 0 else ("items.weight", "out.weight")
        drawing.text(left + 150, 212, f"server {number}", "title")
        drawing.text(left + 150, 234, " · ".join(names), "code")
        drawing.text(left + 150, 254, "with the optimizer's state of each,")
        drawing.text(left + 150, 270, "and the code that steps them")
    for worker in (110, 450):
        for server in (110, 450):
            drawing.arrow(worker + (server - worker) // 9, 92, server - 8, 187, "down")
            drawing.arrow(server + 130, 187, worker + 130 + (server - worker) // 9, 92, "up")
    drawing.text(24, 144, "gradients", "left")
    drawing.text(604, 144, "new values", "left")
    return drawing.svg()


def consistency() -> str:
    """Return the steps that two workers take in each mode, one twice as fast as the other."""
    drawing = Drawing(680, 330, "Steps of a fast and a slow worker: async, bounded and sync")
    modes = {"async": None, "bounded (1)": 1, "sync": 0}
    for row, (name, ahead) in enumerate(modes.items()):
        top = 24 + row * 100
        drawing.text(16, top, name, "title left")
        for worker, steps in enumerate(schedule(DURATIONS, ahead, LAST)):
            timeline(drawing, top + 10 + worker * 32, worker, steps)
    drawing.text(112, 322, "time: numbers are steps, hatched is waiting", "left")
    return drawing.svg()


def timeline(drawing: Drawing, top: int, worker: int, steps: list[Step]) -> None:
    """Draw the steps of one worker, and what it waits between them."""
    drawing.text(16, top + 18, f"worker {worker}", "left")
    ended = 0.0
    for number, step in enumerate(steps, 1):
        if step.begins > ended:
            width = round((step.begins - ended) * SECOND)
            drawing.box(112 + round(ended * SECOND), top, width, 26, "wait")
        left, width = 112 + round(step.begins * SECOND), round((step.ends - step.begins) * SECOND)
        drawing.box(left, top, width, 26, "worker" if worker == 0 else "server")
        drawing.text(left + width // 2, top + 18, str(number))
        ended = step.ends


def once() -> str:
    """Return a push that is repeated, because its answer was lost, and applied once."""
    drawing = Drawing(680, 250, "A push whose answer is lost is repeated, and applied once")
    for left, name in ((120, "worker 0"), (560, "server")):
        drawing.text(left, 24, name, "title")
        drawing.line(left, 34, left, 240)
    drawing.arrow(120, 55, 556, 75, "down")
    drawing.text(340, 58, "push number 7", "label")
    drawing.text(570, 92, "applied, recorded", "left")
    drawing.arrow(556, 105, 330, 118, "lost")
    drawing.text(300, 124, "✕", "title")
    drawing.text(300, 148, "the connection breaks", "label")
    drawing.arrow(120, 172, 556, 190, "down")
    drawing.text(340, 174, "push number 7, again", "label")
    drawing.text(570, 200, "not applied:", "left")
    drawing.text(570, 216, "it is in the record", "left")
    drawing.arrow(556, 212, 124, 230, "up")
    drawing.text(340, 240, "the recorded answer", "label")
    return drawing.svg()
