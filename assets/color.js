/* Paints drafted text with the CSS Custom Highlight API: ranges over text nodes, the page's elements stay untouched.

A rendered message is a row of blocks. A block that is the same element as before, and starts at the same place of the
raw text, keeps its ranges; so a frame costs what its last block costs, however long the answer is. Only blocks near the
visible part are painted, because the browser goes through all painted ranges whenever one changes. Every alignment is
measured: below THRESHOLD the whole answer stays plain, below BLOCK_THRESHOLD the block does. */
(() => {
  "use strict";

  const THRESHOLD = 0.98;
  const BLOCK_THRESHOLD = 0.9;
  const NAME = "eagle-draft";
  const HIDDEN = ".katex, .mermaid, svg, button, style, script";
  const { alignBlock, createFlags, createSource, isSpace } = window.eagleAlign;
  const canPaint = "highlights" in CSS;
  const highlight = canPaint ? new Highlight() : null;
  const NEAR = "800px 0px"; // around the visible part
  const blockOf = new WeakMap(); // element -> block
  const changed = new WeakSet(); // blocks whose inside changed after they were drawn
  let isColored = true;
  let watcher = null; // tells which blocks are near

  /* ------------------------------------------------------------ what an answer knows ------------- */
  const createMarks = () => ({
    source: createSource(), flags: createFlags(), blocks: [], matched: 0, total: 0, nRanges: 0, isPainted: false,
  });

  function take(marks, text, runs) {
    /* Take over text and runs, which usually continue those of the last call. */
    if (!text.startsWith(marks.source.text)) {
      forget(marks);
      marks.source = createSource();
    }
    marks.source.append(text.slice(marks.source.text.length));
    if (!marks.flags.take(runs)) forget(marks);
  }

  function forget(marks) {
    for (const block of marks.blocks) drop(block);
    marks.blocks = [];
  }

  /* ------------------------------------------------------------ blocks --------------------------- */
  function paint(marks, element) {
    const nodes = [];
    for (const place of element.querySelectorAll(".md")) {
      for (let node = place.firstChild; node; node = node.nextSibling) {
        if (node.nodeType === Node.ELEMENT_NODE || (node.nodeType === Node.TEXT_NODE && node.nodeValue.trim())) {
          nodes.push(node);
        }
      }
    }
    let start = 0;
    const blocks = nodes.map((node, index) => {
      const old = marks.blocks[index];
      const isSame = old && old.node === node && old.start === start && !old.pending && !changed.has(node);
      const block = isSame ? old : align(node, marks, start);
      changed.delete(node);
      start = block.next;
      return block;
    });
    const kept = new Set(blocks);
    for (const block of marks.blocks) if (!kept.has(block)) drop(block);
    marks.blocks = blocks;
    marks.matched = blocks.reduce((sum, block) => sum + block.matched, 0);
    marks.total = blocks.reduce((sum, block) => sum + block.total, 0);
    marks.isPainted = marks.matched >= THRESHOLD * marks.total;
    marks.nRanges = 0;
    for (const block of blocks) {
      watch(block, element);
      update(block);
      marks.nRanges += marks.isPainted ? block.ranges.length : 0;
    }
  }

  function align(node, marks, start) {
    if (node.nodeType === Node.ELEMENT_NODE && node.querySelector(".katex")) marks.source.expectMath();
    const shown = shownText(node);
    const result = alignBlock(shown.codes, marks.source, start);
    const total = shown.codes.length - result.pending;
    const isGood = result.matched >= BLOCK_THRESHOLD * total;
    const ranges = isGood ? rangesOf(shown, result.found, marks.flags.units) : [];
    return {
      node, marks, start, next: result.next, matched: result.matched, total, pending: result.pending, ranges, isDrawn: false,
      isNear: true, isWatched: false,
    };
  }

  function watch(block, message) {
    /* A new block counts as near until it is known to be far: its color must not come a frame late. */
    if (block.isWatched || block.node.nodeType !== Node.ELEMENT_NODE) return;
    const root = message.closest('[role="log"]');
    if (!watcher || watcher.root !== root) {
      watcher?.disconnect();
      watcher = new IntersectionObserver(onMove, { root, rootMargin: NEAR });
    }
    block.isWatched = true;
    blockOf.set(block.node, block);
    watcher.observe(block.node);
  }

  function onMove(entries) {
    for (const { target, isIntersecting } of entries) {
      const block = blockOf.get(target);
      if (!block) continue;
      block.isNear = isIntersecting;
      update(block);
    }
    show();
  }

  function update(block) {
    if (block.marks.isPainted && block.isNear) draw(block);
    else erase(block);
  }

  function drop(block) {
    erase(block);
    if (block.isWatched && blockOf.get(block.node) === block) {
      watcher.unobserve(block.node);
      blockOf.delete(block.node);
    }
  }

  function draw(block) {
    if (block.isDrawn) return;
    for (const range of block.ranges) highlight?.add(range);
    block.isDrawn = true;
  }

  function erase(block) {
    if (!block.isDrawn) return;
    for (const range of block.ranges) highlight?.delete(range);
    block.isDrawn = false;
  }

  function shownText(block) {
    /* Solid characters that are shown, and where they are. */
    const codes = [];
    const nodes = [];
    const offsets = [];
    const walker = document.createTreeWalker(block, NodeFilter.SHOW_TEXT | NodeFilter.SHOW_ELEMENT, {
      acceptNode: (node) => {
        if (node.nodeType === Node.TEXT_NODE) return NodeFilter.FILTER_ACCEPT;
        return node.matches(HIDDEN) ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_SKIP;
      },
    });
    let node = block.nodeType === Node.TEXT_NODE ? block : walker.nextNode();
    for (; node; node = walker.nextNode()) {
      const value = node.nodeValue;
      for (let at = 0; at < value.length; at += 1) {
        const code = value.charCodeAt(at);
        if (isSpace(code)) continue;
        codes.push(code);
        nodes.push(node);
        offsets.push(at);
      }
    }
    return { codes, nodes, offsets };
  }

  function rangesOf(shown, found, units) {
    /* Ranges over drafted characters; white space between two of them joins them if it was drafted too. */
    const ranges = [];
    let open = null;
    const close = () => {
      if (open) {
        ranges.push(new StaticRange({
          startContainer: open.node, startOffset: open.start, endContainer: open.node, endOffset: open.end,
        }));
      }
      open = null;
    };
    for (let at = 0; at < found.length; at += 1) {
      const place = found[at];
      if (place < 0 || !units[place]) {
        close();
      } else if (open && open.node === shown.nodes[at] && isDrafted(units, open.place, place)) {
        open.end = shown.offsets[at] + 1;
        open.place = place;
      } else {
        close();
        open = { node: shown.nodes[at], start: shown.offsets[at], end: shown.offsets[at] + 1, place };
      }
    }
    close();
    return ranges;
  }

  function isDrafted(units, start, end) {
    for (let at = start; at < end; at += 1) if (!units[at]) return false;
    return true;
  }

  /* ------------------------------------------------------------ page ----------------------------- */
  function show() {
    if (!canPaint) return;
    if (isColored && highlight.size) {
      if (!CSS.highlights.has(NAME)) CSS.highlights.set(NAME, highlight);
    } else {
      CSS.highlights.delete(NAME);
    }
  }

  function noteChanges(records) {
    /* Remember blocks whose inside changed; new blocks are told by their identity. */
    for (const { target } of records) {
      const inside = target.nodeType === Node.ELEMENT_NODE ? target : target.parentElement;
      const place = inside?.closest(".md");
      if (!place || place === inside) {
        if (place && target.nodeType === Node.TEXT_NODE) changed.add(target);
        continue;
      }
      let block = inside;
      while (block.parentElement !== place) block = block.parentElement;
      changed.add(block);
    }
  }

  window.eagleColor = {
    canPaint,
    createMarks,
    forget,
    noteChanges,
    paint,
    show,
    take,
    get isColored() {
      return isColored;
    },
    set isColored(value) {
      isColored = value;
      show();
    },
  };
})();
