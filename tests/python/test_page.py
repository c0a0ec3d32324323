"""The page of a report in a browser: complete, quiet and readable on any screen. Needs a Chromium."""

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from bucketshuffle.report import Report
from bucketshuffle.report.draw import PLOTS
from conftest import uneven_lengths
from playwright import sync_api

ON_PATH = ("chromium", "chromium-headless-shell", "google-chrome", "chromium-browser")
# What is cut off or lies on something else: no part may leave the window, save in a box that scrolls by itself, no text
# of a plot may leave the plot, and no two texts of a plot may overlap by more than a line's empty edge.
LOOK = """() => {
  const bad = [], width = document.documentElement.clientWidth;
  const held = document.documentElement.scrollWidth;
  if (held > width) bad.push(`the page is ${held} wide`);
  for (const part of document.querySelectorAll("body *")) {
    const box = part.getBoundingClientRect(), scrolls = part.closest(".table");
    if (!scrolls && !part.closest("svg *") && (box.right > width + 1 || box.left < -1))
      bad.push(`${part.tagName} reaches ${box.right}`);
    if (!scrolls && !part.closest("svg") && part.scrollWidth > part.clientWidth + 1 && part.clientWidth)
      bad.push(`${part.tagName} holds ${part.scrollWidth} in ${part.clientWidth}`);
  }
  for (const plot of document.querySelectorAll("svg")) {
    const frame = plot.getBoundingClientRect();
    const texts = [...plot.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()]);
    for (const [text, box] of texts) {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 ||
          box.bottom > frame.bottom + 1) bad.push(`"${text}" leaves its plot`);
      if (box.height < 8) bad.push(`"${text}" is ${box.height} high`);
    }
    texts.forEach(([one, a], i) => texts.slice(i + 1).forEach(([other, b]) => {
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > Math.min(a.height, b.height) / 3) bad.push(`"${one}" overlaps "${other}"`);
    }));
  }
  return bad;
}"""
# Luminance of the page and the least contrast of its texts, by https://www.w3.org/TR/WCAG21/#dfn-contrast-ratio.
CONTRAST = """() => {
  const light = colour => {
    const [r, g, b] = colour.match(/[0-9.]+/g).map(x => x / 255)
      .map(x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  const inks = [...document.querySelectorAll("p, li, td, th, dd, dt, h1, h2, svg text")].map(part => {
    const style = getComputedStyle(part);
    return light(part.closest("svg") ? style.fill : style.color);
  });
  const contrast = ink => (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  return [paper, Math.min(...inks.map(contrast))];
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    with sync_api.sync_playwright() as playwright:
        own = Path(playwright.chromium.executable_path)
        found = str(own) if own.exists() else next(filter(None, map(shutil.which, ON_PATH)), None)
        if found is None:
            pytest.skip("no Chromium: playwright install --with-deps chromium, or apt-get install chromium")
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


@functools.cache
def page_of(name: str) -> str:
    lengths, options = {
        "usual": (uneven_lengths(20_000), {"window": 16, "boundaries": [0, 1_000, 4_000, 8_191]}),
        "few": (np.array([5, 5, 5, 900, 7]), {}),
        "equal": (np.full(300, 265), {"token_budget": 2_048, "window": 4}),
        "long": (np.array([1, 2**62, 2**61]), {"token_budget": 2**63 - 1}),
        "nothing": (np.zeros(4, np.int64), {}),
    }[name]
    return Report.of(lengths, name=f"/a/path/that/has/no/place/to/break/it/in/two/{name}.npy", **options).to_html()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", ["usual", "few", "equal", "long", "nothing"])
def test_nothing_is_clipped_or_said_to_the_console(browser, name, width, scheme, tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "page.html").write_text(page_of(name))
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("requestfailed", lambda request: said.append(request.url))
    page.goto(f"file://{tmp_path}/page.html")
    assert page.locator("svg").count() == (0 if name == "nothing" else len(PLOTS))
    assert page.evaluate(LOOK) == []
    paper, contrast = page.evaluate(CONTRAST)
    assert (paper > 0.9) == (scheme == "light")
    assert (paper < 0.02) == (scheme == "dark")
    assert contrast >= 4.5
    assert said == []
    context.close()


def test_the_page_asks_for_nothing() -> None:
    page = page_of("usual")
    assert page.count("http") == page.count("http://www.w3.org/")  # the names of SVG
    assert "url(" not in page.replace("url(#", "")
    assert "<script" not in page
