# ruff: noqa: E501 - scripts
"""Scripts that a browser test runs in the page: poor contrast, and controls without a name."""

CONTRAST = """() => {
  const luminance = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const numbers = color => (color.match(/[\\d.]+/g) || []).map(Number);
  const ground = element => {
    for (let e = element; e; e = e.parentElement) {
      const color = numbers(getComputedStyle(e).backgroundColor);
      if (color.length === 3 || color[3] > 0.95) return color;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.nodeValue.trim() || !element.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
    const box = element.getBoundingClientRect();
    if (box.width < 2 || box.height < 2 || element.closest('.katex, .token, [disabled]')) continue;
    const style = getComputedStyle(element);
    const [a, b] = [luminance(numbers(style.color)), luminance(ground(element))].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize);
    const wanted = size >= 24 || (size >= 18.6 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < wanted) poor.push([walker.currentNode.nodeValue.trim().slice(0, 40), ratio.toFixed(2), element.className]);
  }
  return poor;
}"""

UNNAMED = """() => [...document.querySelectorAll('button, input:not([type=hidden]), textarea, a[href], summary, [role=button]')]
  .filter(e => e.checkVisibility({visibilityProperty: true}))
  .filter(e => !(e.getAttribute('aria-label') || e.innerText?.trim() || e.labels?.length || e.title
    || e.getAttribute('aria-labelledby') || e.closest('label')?.innerText.trim()))
  .map(e => e.outerHTML.slice(0, 160))"""
