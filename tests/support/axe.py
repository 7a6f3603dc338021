"""axe-core in a page: the rules of accessibility that a program can check."""

from __future__ import annotations

from importlib import resources
from typing import Any

RUN = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations
.filter(found => ['serious', 'critical'].includes(found.impact))
.map(found => `${found.id} (${found.impact}, ${found.nodes.length}): ${found.help}\\n` +
found.nodes.slice(0, 5).map(node => `    ${node.target.join(' ')}: ${node.html.slice(0, 160)}\\n` +
`        ${node.failureSummary.replaceAll('\\n', ' ')}`).join('\\n'))"""


def serious_problems(page: Any) -> list[str]:
    """What axe-core finds on the page as it is shown now, if it is serious or critical."""
    if not page.evaluate("typeof window.axe === 'object'"):
        page.evaluate(resources.files("axe_playwright_python").joinpath("axe.min.js").read_text())
    return [str(found) for found in page.evaluate(RUN)]
