"""From the card in the launcher to the first result: what a person sees on the way, in order."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import expect

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
    open_lab: Notebook, picture: Callable[..., None]
) -> None:
    open_lab.load()
    open_lab.page.evaluate(WATCH)
    open_lab.start("local session")
    open_lab.run("1+1")
    open_lab.expect_ready()
    expect(open_lab.outputs.last).to_have_text("2", timeout=30 * SECOND)
    order = [*CONDITIONS, "ready"]
    seen = [order.index(each) for each in open_lab.page.evaluate("() => window.seen")]
    assert seen == sorted(set(seen)), "a condition came twice, or out of order"
    assert seen[-1] == order.index("ready")
    assert len(seen) >= 3, "conditions came true too fast to be seen, or were not shown"
    panel = open_lab.show_panel()
    expect(panel.locator('.openai4s-Ladder li[data-progress="met"]')).to_have_count(4)
    expect(open_lab.status_item).to_have_attribute("data-state", "ready")
    picture(open_lab.page, "ready")
    assert not open_lab.errors
