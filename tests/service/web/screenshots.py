"""Takes the pictures in docs/screenshots: `python -m tests.service.web.screenshots`, on a machine with Chromium and Pillow.

With a published folder of a model that writes, such as one of configs/recipes/translate-en-de.yaml, it takes the picture of
`finery try` instead: `python -m tests.service.web.screenshots registry/translate`.
"""

from __future__ import annotations

import io
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from sqlalchemy import delete, update

from service.store import tables
from tests.service.web.conftest import CHROMIUM, Site, served

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "screenshots"
LEFT_OUT = ("hostile", "foreign")
AGO = {
    "done": 9_000,
    "better": 7_400,
    "failed": 5_000,
    "study": 3_900,
    "paused": 3_000,
    "cancelled": 2_500,
    "queued": 900,
    "running": 2_300,
}
LASTED = {"done": 2_410, "better": 2_655, "failed": 340}


def _lived_in(site: Site) -> None:
    """The seeded history spread over an afternoon, without the jobs that only tests want."""
    now = time.time()
    jobs, events, scores, models = tables.jobs, tables.events, tables.scores, tables.models

    def work(transaction: Any) -> None:
        for key in LEFT_OUT:
            identifier = site.jobs[key].id
            for table in (events, scores, models, tables.attempts, tables.stage_results):
                transaction.execute(delete(table).where(table.c.job == identifier))
            transaction.execute(delete(jobs).where(jobs.c.id == identifier))
        for key, seconds in AGO.items():
            mine, begun = jobs.c.id == site.jobs[key].id, now - seconds
            row = transaction.execute(jobs.select().where(mine)).mappings().one()
            finished = None if row["finished"] is None else begun + 8 + LASTED.get(key, 60)
            transaction.execute(
                update(jobs).where(mine).values(created=begun, started=row["started"] and begun + 8, finished=finished)
            )
            attempts = tables.attempts
            ended = (
                None
                if transaction.execute(
                    attempts.select().where(attempts.c.job == row["id"], attempts.c.ended.is_(None))
                ).first()
                else finished or begun + 400
            )
            transaction.execute(
                update(attempts).where(attempts.c.job == row["id"]).values(started=begun + 8, ended=ended)
            )
            if finished:
                transaction.execute(update(scores).where(scores.c.job == row["id"]).values(created=finished))
                transaction.execute(update(models).where(models.c.job == row["id"]).values(created=finished))
            for event in transaction.execute(events.select().where(events.c.job == row["id"])).mappings().all():
                span = LASTED.get(key, seconds - 30)
                moment = begun + span * event["id"] / max(1, row["last_event"])
                transaction.execute(
                    update(events).where(events.c.job == row["id"], events.c.id == event["id"]).values(time=moment)
                )
        transaction.execute(update(jobs).where(jobs.c.id == site.jobs["queued"].id).values(name="mini-encoder-sst2"))

    site.store.write(work)
    console = next((site.settings.jobs / site.jobs["running"].id / "attempts").glob("*/console/*.log"))
    dice = random.Random(7)
    console.write_text(
        "".join(
            f"step {step:4d}  loss {5.9 - step / 260 + dice.random() / 9:.4f}  {dice.randint(98, 121)} examples/s\n"
            for step in range(5, 230, 5)
        )
    )


def _save(picture: bytes, name: str) -> None:
    from PIL import Image

    image = Image.open(io.BytesIO(picture)).convert("RGB").quantize(128)
    image.save(FOLDER / f"{name}.png", optimize=True)
    print(f"{name}.png  {(FOLDER / f'{name}.png').stat().st_size / 1000:.0f} kB")


def main() -> None:
    """Take them all."""
    from playwright.sync_api import sync_playwright

    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home, served(Path(home)) as site, sync_playwright() as driver:
        _lived_in(site)
        jobs = {key: job.id for key, job in site.jobs.items()}
        both = f"job={jobs['done']}&job={jobs['better']}&job={jobs['running']}"
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for theme, width, height, shots in (
            (
                "light",
                1280,
                860,
                {
                    "jobs": "/jobs",
                    "job": f"/jobs/{jobs['running']}",
                    "submit": "/submit",
                    "editor": "/submit?mode=yaml",
                    "compare": f"/compare?{both}",
                    "leaderboard": "/leaderboard",
                    "model": "/models/mini-encoder-mrpc",
                    "study": f"/jobs/{jobs['study']}",
                    "diff": f"/jobs/{jobs['done']}?against={jobs['better']}#recipe",
                },
            ),
            ("dark", 1280, 860, {"job-dark": f"/jobs/{jobs['running']}"}),
            ("dark", 400, 860, {"jobs-narrow": "/jobs", "job-narrow": f"/jobs/{jobs['running']}"}),
        ):
            page = browser.new_context(
                base_url=site.address, color_scheme=theme, viewport={"width": width, "height": height}
            ).new_page()
            page.goto("/sign-in")
            page.fill("#token", site.seeded.tokens["submitter"])
            page.click("button.main")
            page.wait_for_url("**/jobs")
            for name, address in shots.items():
                page.goto(address)
                if name == "editor":
                    page.fill(
                        "#text",
                        page.input_value("#text")
                        .replace("builtin/python-docs", "glue/mrcp")
                        .replace("bert-tiny", "bert-tinny"),
                    )
                    page.wait_for_selector("#wrong li")
                page.wait_for_timeout(1_500)
                _save(page.screenshot(), name)
        browser.close()


def tried(folder: str) -> None:
    """The page on which a model that writes is tried, with texts and attention."""
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "service.cli", "try", folder, "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child, sync_playwright() as driver:
        assert child.stdout is not None
        address = json.loads(child.stdout.readline())["url"]
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(color_scheme="light", viewport={"width": 1280, "height": 1500}).new_page()
        page.goto(address)
        page.wait_for_selector("#form-complete", timeout=120_000)
        for form in ("complete", "attention"):
            page.fill(f"#f-{form}-text", "A man in a blue shirt is standing on a ladder.")
            page.click(f"#form-{form} button.main")
            page.wait_for_selector(f"#answer-{form} .same")
        _save(page.screenshot(), "try")
        browser.close()
        child.send_signal(signal.SIGINT)


if __name__ == "__main__":
    tried(sys.argv[1]) if sys.argv[1:] else main()
