/* The panels beside the conversation: the list of chats on the left; settings, or figures of the last answer, on the right.

A wide page shows one on each side. Where the conversation would become too narrow, opening one closes the other. On a small page a
panel lies over it, as a dialog: it takes the focus, the page behind it is inert, and Escape, a touch beside it or its own button
close it. What was chosen is remembered, except on a small page. */
(() => {
  "use strict";

  const RIGHT = ["settings", "details"];
  const NAMES = { chats: "Chats", settings: "Settings", details: "Details" };
  const over = matchMedia("(max-width: 59.99rem)"); // as in chat.css
  const oneOnly = matchMedia("(max-width: 75.99rem)"); // two panels and 35rem to read do not fit
  const isOver = () => over.matches;
  const isOpen = (name) => document.body.dataset[name] === "open";
  const panel = (name) => document.getElementById(name);
  const button = (name) => document.querySelector(`[data-drawer="${name}"]`);

  const chosen = (name) => {
    try {
      return (localStorage.getItem(`eagle-${name}`) ?? String(name === "chats")) === "true";
    } catch {
      return name === "chats";
    }
  };
  const choose = (name, isWanted) => {
    try {
      localStorage.setItem(`eagle-${name}`, String(isWanted));
    } catch {
      /* a browser that keeps nothing */
    }
  };

  function show(name, isShown) {
    const place = panel(name);
    document.body.dataset[name] = isShown ? "open" : "closed";
    button(name)?.setAttribute("aria-expanded", String(isShown));
    if (place) {
      place.setAttribute("role", isOver() ? "dialog" : "region");
      place.setAttribute("aria-label", NAMES[name]);
      if (isOver()) place.setAttribute("aria-modal", "true");
      else place.removeAttribute("aria-modal");
    }
  }

  function showOnly(wanted) {
    /* Open these panels and close the others. Who was in one of those, or in front of the page, goes back to its button. */
    const wasOver = document.body.dataset.over === "on";
    const closed = Object.keys(NAMES).filter((name) => isOpen(name) && !wanted.includes(name));
    const left = closed.find((name) => wasOver || panel(name)?.contains(document.activeElement));
    for (const name of Object.keys(NAMES)) show(name, wanted.includes(name));
    const isBehind = isOver() && wanted.length > 0;
    document.body.dataset.over = isBehind ? "on" : "off";
    const main = panel("main");
    if (main) main.inert = isBehind;
    if (isBehind) panel(wanted[0]).querySelector("[data-close]")?.focus({ preventScroll: true });
    else if (left) button(left)?.focus();
  }

  function arrange() {
    /* As it was chosen before and as the page's width allows; nothing lies over the page unasked. */
    if (!panel("chats")) return;
    const right = RIGHT.filter(chosen).slice(0, 1);
    const left = chosen("chats") && !(oneOnly.matches && right.length) ? ["chats"] : [];
    showOnly(isOver() ? [] : [...left, ...right]);
  }

  function set(name, isWanted) {
    if (isOver()) {
      showOnly(isWanted ? [name] : []);
      return;
    }
    choose(name, isWanted);
    if (isWanted && (RIGHT.includes(name) || oneOnly.matches)) {
      for (const other of RIGHT) if (other !== name) choose(other, false);
    }
    arrange();
  }

  const toggle = (name) => set(name, !isOpen(name));
  const closeOver = () => {
    const isShown = document.body.dataset.over === "on";
    if (isShown) showOnly([]);
    return isShown;
  };

  document.addEventListener("click", (event) => {
    const closer = event.target.closest?.("[data-close]");
    if (closer) set(closer.dataset.close, false);
  });
  document.addEventListener("pointerdown", (event) => {
    if (!event.target.closest?.("#chats, #settings, #details, dialog, .options")) closeOver();
  }, true);
  over.addEventListener("change", arrange);
  oneOnly.addEventListener("change", arrange);

  window.eagleDrawers = { arrange, set, toggle, closeOver, isOver };
})();
