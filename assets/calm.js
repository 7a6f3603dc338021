/* Keeps the page's work per frame small. Gradio assigns every message's `dir` again on each update, to the value that it
has, and the browser then computes the styles of the whole message anew: with a long answer this was most of its work. */
(() => {
  "use strict";
  const dir = Object.getOwnPropertyDescriptor(HTMLElement.prototype, "dir");
  Object.defineProperty(HTMLElement.prototype, "dir", {
    ...dir,
    set(value) {
      if (value === "auto" || this.getAttribute("dir") !== String(value)) dir.set.call(this, value);
    },
  });
})();
