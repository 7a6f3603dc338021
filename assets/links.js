/* Links in messages come from the model: only what leads to a web page or a mail is opened. */
(() => {
  "use strict";

  const OPENED = ["http:", "https:", "mailto:"];

  function check(event) {
    const link = event.target.closest?.("#chat .message a[href]");
    if (!link || OPENED.includes(link.protocol)) return;
    event.preventDefault();
    event.stopPropagation();
    window.eagleChat?.say(`A link to ${link.protocol || "an unknown place"} is not opened`);
  }

  document.addEventListener("click", check, true);
  document.addEventListener("auxclick", check, true);
})();
