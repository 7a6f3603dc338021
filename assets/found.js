/* Shows what a search found: the words in the list of chats, and in the message that a hit brings into view.

In the list the server says which parts of a text were found; in a message, whose Markdown the page has drawn, words are looked for
here. Both are marked without touching the text: as elements of their own, and as ranges that the browser paints. */
(() => {
  "use strict";

  const NAME = "eagle-found";
  const canPaint = Boolean(window.CSS?.highlights && window.Highlight);

  function fill(element, parts) {
    /* Put a text into an element; every second part is one that was found. */
    element.replaceChildren(...parts.map((text, index) => {
      if (index % 2 === 0) return text;
      const mark = document.createElement("mark");
      mark.textContent = text;
      return mark;
    }));
    return element;
  }

  function rangesOf(root, query) {
    const words = query.split(/\s+/).filter(Boolean).sort((a, b) => b.length - a.length);
    if (!words.length) return [];
    const any = new RegExp(words.map((word) => word.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&")).join("|"), "giu");
    const found = [];
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      for (const hit of walker.currentNode.nodeValue.matchAll(any)) {
        const range = document.createRange();
        range.setStart(walker.currentNode, hit.index);
        range.setEnd(walker.currentNode, hit.index + hit[0].length);
        found.push(range);
      }
    }
    return found;
  }

  function paint(root, query) {
    /* Mark the words of a query in a message; returns the first of them, if there is any. */
    const ranges = root ? rangesOf(root, query) : [];
    if (canPaint && ranges.length) {
      const painted = new Highlight(...ranges);
      painted.priority = 1; // above drafted words
      CSS.highlights.set(NAME, painted);
    } else if (canPaint) CSS.highlights.delete(NAME);
    return ranges[0];
  }

  window.eagleFound = { fill, paint };
})();
