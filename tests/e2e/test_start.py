"""From the card in the launcher to the first result: what a person sees on the way, in order."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import expect

from .freezer import Freezer
from .notebook import CONDITIONS, SECOND, Notebook

WATCH = """
() => {
  window.seen = [];
  const look = () => {
    for (const badge of document.querySelectorAll('.jp-NotebookPanel-toolbar .openai4s-Badge-button')) {
      const now = badge.dataset.missing || badge.dataset.state;
      if (window.seen.at(-1) !== now) { window.seen.push(now); }
    }
  };
  new MutationObserver(look).observe(document.body, { subtree: true, childList: true, attributes: true });
}
"""


def test_a_card_becomes_a_kernel_and_every_condition_comes_true_in_order(
    open_lab: Notebook, freeze: Callable[[str], Freezer], picture: Callable[..., None]
) -> None:
    open_lab.load()
    open_lab.page.evaluate(WATCH)
    frozen = freeze(r"^\S*python\S* -I \S+\.pyz worker ")  # else all of it may be over before the page has asked once
    open_lab.start("local session")
    open_lab.expect_missing("worker_registered")
    frozen.thaw()
    open_lab.run("1+1")
    open_lab.expect_ready()
    expect(open_lab.outputs.last).to_have_text("2", timeout=30 * SECOND)
    order = ["admission", *CONDITIONS, "ready"]
    seen = [order.index(each) for each in open_lab.page.evaluate("() => window.seen")]
    assert seen == sorted(set(seen)), "a condition came twice, or out of order"
    assert seen[-1] == order.index("ready")
    assert len(seen) >= 2, "no condition was shown"  # each alone is held, and named, in test_waiting
    panel = open_lab.show_panel()
    expect(panel.locator('.openai4s-Ladder li[data-progress="met"]')).to_have_count(4)
    expect(open_lab.status_item).to_have_attribute("data-state", "ready")
    picture(open_lab.page, "ready")
    assert not open_lab.errors
