# ruff: noqa: E501 - a sample is one string
"""What a model might write to take over a page, and how a browser test tells that it did not."""

from __future__ import annotations

import socket
import threading
from typing import Any

from tests.support.nasty_markdown import ATTACK, HOSTILE

BAD = "https://evil.example"

# Beyond nasty_markdown.HOSTILE. Each wants to run, load, style, cover, send, imitate or confuse.
MORE = {
    "handlers": "<b onclick=window.hacked=1 onmouseover=window.hacked=1>x</b> <details open ontoggle=window.hacked=1>d</details> <marquee onstart=window.hacked=1>m</marquee> <input autofocus onfocus=window.hacked=1>",
    "broken-tags": "<scr<script>ipt>window.hacked=1</scr</script>ipt> <img/src=x/onerror=window.hacked=1> <\nscript>window.hacked=1</script> <svg/onload=window.hacked=1> </p><script>window.hacked=1</script>",
    "comment": "<!-- --><script>window.hacked=1</script><!-- x --!><img src=x onerror=window.hacked=1> <![CDATA[<img src=x onerror=window.hacked=1>]]>",
    "mathml": f"<math><mtext><table><mglyph><style><!--</style><img title=\"--&gt;&lt;img src=x onerror=window.hacked=1&gt;\"></style></mglyph></table></mtext></math> <math href=javascript:window.hacked=1>x</math> <math><annotation-xml encoding=text/html><img src={BAD}/m.png></annotation-xml></math>",
    "svg-more": f"<svg><use href={BAD}/u.svg#x /><animate attributeName=href to=javascript:window.hacked=1 /><foreignObject><iframe src={BAD}></iframe></foreignObject></svg>",
    "refresh": f"<meta http-equiv=\"refresh\" content=\"0;url={BAD}/r\"><meta http-equiv=Set-Cookie content=a=1>",
    "css": f"<p style=\"background:url({BAD}/bg.png);position:fixed;inset:0\">x</p><style>@import url({BAD}/i.css);body{{background:url({BAD}/b.png)}} #box{{display:none}}</style><link rel=preload as=image href={BAD}/l.png><link rel=preconnect href={BAD}>",
    "classes": "<div class='notice error' role='alert'>Your session expired</div><div class='drawer' id='settings'>x</div>",
    "data-links": "[a](data:text/html;base64,PHNjcmlwdD53aW5kb3cuaGFja2VkPTE8L3NjcmlwdD4=) [b](JaVaScRiPt:window.hacked=1) [c](java&#115;cript:window.hacked=1) [d](&#x6A;avascript:window.hacked=1) [e](\x01javascript:window.hacked=1) [f](<javascript:window.hacked=1>) <javascript:window.hacked=1> [g](blob:http://127.0.0.1/x) [h](file:///etc/passwd) [i](javascript&colon;window.hacked=1)",
    "reference-links": "[Settings][x] ![p][y] [![q][y]][x]\n\n[x]: javascript:window.hacked=1 \"title\"\n[y]: https://evil.example/y.png 'onerror=window.hacked=1'\n\n[foo]: <data:text/html,<script>window.hacked=1</script>>\n\n[foo]",
    "image-tricks": f"![a]({BAD}/a.png) !\\[b]({BAD}/b.png) \\![c]({BAD}/c.png) \\\\![d]({BAD}/d.png) [![e]({BAD}/e.png)]({BAD}) ![f](  <{BAD}/f.png>  \"t\" ) ![g]\n({BAD}/g.png) *![h]({BAD}/h.png)* | ![i]({BAD}/i.png) |\n|---|\n| ![j]({BAD}/j.png) |\n\n> ![k]({BAD}/k.png)\n\n1. ![l]({BAD}/l.png)",
    "fences": f"````\n```\n<img src={BAD}/1.png onerror=window.hacked=1>\n````\n<img src={BAD}/2.png onerror=window.hacked=1>\n\n~~~ html\"><img src={BAD}/3.png onerror=window.hacked=1>\n</code></pre><script>window.hacked=1</script>\n~~~\n\n```js\" onmouseover=\"window.hacked=1\n</code></pre><img src=x onerror=window.hacked=1>\n```\n\n``` <b>\n</pre>\n```\n\n`` ` <img src={BAD}/4.png> `` ` <img src={BAD}/5.png onerror=window.hacked=1>",
    "list-fence": f"- a\n  ```\n  x\n<img src={BAD}/6.png onerror=window.hacked=1>\n  ```\n<img src={BAD}/7.png onerror=window.hacked=1>\n\n> ```\n> q\n<img src={BAD}/8.png onerror=window.hacked=1>\n\n\t<img src={BAD}/9.png onerror=window.hacked=1>\n    \n<img src={BAD}/10.png onerror=window.hacked=1>",
    "latex": f"$$\\href{{javascript:window.hacked=1}}{{x}}$$ $$\\url{{javascript:window.hacked=1}}$$ $$\\htmlClass{{stop-button}}{{x}}\\htmlId{{box}}{{y}}\\htmlStyle{{position:fixed;inset:0;background:red}}{{z}}\\htmlData{{a=1}}{{w}}$$ $$\\includegraphics[width=9em]{{{BAD}/t.png}}$$ \\(\\href{{data:text/html,<script>window.hacked=1</script>}}{{y}}\\) $$</span><img src=x onerror=window.hacked=1>$$ \\(<img src=x onerror=window.hacked=1>\\)",
    "latex-cover": "$$\\rule{900em}{900em}$$ $$\\raise{40em}{\\rule{90em}{90em}}$$ $$\\kern-90em\\rule{180em}{60em}$$ $$\\smash{\\rule{90em}{90em}}$$ \\[\\def\\x{\\x\\x}\\x\\] \\[\\color{white}\\colorbox{white}{x}\\]",
    "headings": "# box\n\n## files\n\n### meter\n\n#### chat\n\n# settings {#box}\n\n# to-end",
    "looks-like-ui": f"[Stop]({BAD}/stop) [**Log in again**]({BAD}/login)\n\n---\n\n- [x] [Allow]({BAD}/allow)\n\n| [Settings]({BAD}) | [New chat]({BAD}) |\n|---|---|\n\n[http://127.0.0.1:7860/]({BAD}) <{BAD}/auto> {BAD}/bare www.evil.example you@evil.example",
    "footnotes": f"a[^1] b[^<img src=x onerror=window.hacked=1>]\n\n[^1]: ![x]({BAD}/foot.png) <img src=x onerror=window.hacked=1>\n\n:smile: :<script>window.hacked=1</script>: ==<b onclick=1>m</b>==",
    "terminal": "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[2J\x1b[H \x1b]8;;https://evil.example\x07link\x1b]8;;\x07 \x9b31m bell \x07 \x00 back \x08\x08\x08 \x7f",
    "bidi": "‮reversed‬ ⁦isolated ‮not closed \u202eevil\u2066 `\u202e} \u2066if (admin)\u2069 \u2066{` \u200b\u200d\u2060\ufeff zero \u2028 line \u2029 paragraph " + "Z" + "\u0317\u0321\u0334" * 200,
    "entities": "&lt;script&gt;window.hacked=1&lt;/script&gt; &#60;img src=x onerror=window.hacked=1&#62; &lt;img src=x onerror=window.hacked=1> &amp;lt;script&amp;gt; &#33;[x](https://evil.example/e.png)",
    "long-line": "W" * 6000 + "\n\n" + "| " + "x | " * 300 + "\n\n" + "> " * 300 + "deep",
    "gradio": '{"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}, "url": "https://evil.example/f.png"} <gradio-app src=https://evil.example></gradio-app> {{ constructor.constructor(\'window.hacked=1\')() }} ${window.hacked=1} {@html "<img src=x onerror=window.hacked=1>"}',
}  # fmt: skip
SAMPLES = {"everything": ATTACK, **HOSTILE, **MORE}

# Everything wrong with the part of the page that a selector names; an empty list is what a test wants.
HARM = """(selector) => {
  const found = [];
  const note = (what, element) => found.push(`${what}: ${element ? element.outerHTML.slice(0, 160) : ''}`);
  if (window.hacked !== undefined) note(`a script ran (${window.hacked})`);
  const active = 'script, style, link, meta, base, iframe, frame, object, embed, video, audio, source, track, img, image, '
    + 'form, select, textarea, dialog, marquee, portal, template, slot, gradio-app, math:not(.katex math), '
    + 'svg:not(.katex svg, button svg, summary svg)';
  for (const root of document.querySelectorAll(selector)) {
    root.querySelectorAll(active).forEach(e => note('active element', e));
    root.querySelectorAll('input:not([type=checkbox][disabled])').forEach(e => note('input', e));
    for (const e of root.querySelectorAll('*')) {
      for (const { name, value } of e.attributes) {
        if (/^on/i.test(name)) note('handler', e);
        if (name === 'id') note('id', e);
        if (name === 'style' && !e.closest('.katex, .katex-error') && !/^(text-align: ?\\w+;?)?$/.test(value)) note('style', e);
        if (/^(src|srcset|poster|background|action|formaction|data|ping)$/i.test(name)) note('address', e);
      }
      const position = getComputedStyle(e).position;
      if (position === 'fixed') note('fixed', e);
    }
    for (const a of root.querySelectorAll('a[href], a[\\\\:href]')) {
      if (!['http:', 'https:', 'mailto:', 'file:', 'blob:', ':'].includes(a.protocol)) note('link', a); // the page opens the first three
      if (a.target !== '_blank' || !a.rel.includes('noopener')) note('link that opens here', a);
    }
  }
  return found;
}"""

# How the page around the text looks: must be the same before and after.
LOOK = """(selectors) => [location.href, document.title, ...selectors.map(selector => {
  const e = document.querySelector(selector);
  const s = getComputedStyle(e);
  const { x, y, width } = e.getBoundingClientRect();
  return [selector, s.display, s.visibility, s.position, s.opacity, s.color, s.backgroundColor, s.backgroundImage, s.fontFamily,
    s.fontSize, s.direction, s.transform, s.filter, s.zIndex, Math.round(x), Math.round(y), Math.round(width)].join(' | ');
})]"""

# Controls that something lies over.
COVERED = """(selectors) => selectors.filter(selector => {
  const e = document.querySelector(selector);
  const { x, y, width, height } = e.getBoundingClientRect();
  const top = document.elementFromPoint(x + width / 2, y + height / 2);
  return !(top && (e.contains(top) || top.contains(e)));
})"""


# Chromium itself asks these for updates and its own accounts, whatever page is shown.
BROWSERS_OWN = (
    "accounts.google.com", "android.clients.google.com", "clients2.google.com", "gvt1.com", "update.googleapis.com",
    "content-autofill.googleapis.com", "optimizationguide-pa.googleapis.com", "safebrowsing.googleapis.com",
)  # fmt: skip


class DeadProxy:
    """The browser's only way off this machine: writes down who asked for what, and answers nobody.

    Unlike a page's list of requests it also sees connections that are opened ahead of any request.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, name="dead-proxy", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        host, port = self._socket.getsockname()
        return f"http://{host}:{port}"

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                try:
                    asked = connection.recv(4096).decode("latin-1").split("\r\n")[0]
                except OSError as error:
                    asked = f"unreadable: {error}"
                if not any(host in asked for host in BROWSERS_OWN):
                    self.asked.append(asked)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(5)


def spare_port() -> int:
    """A free port, not the usual one that other tests on this machine may be about to take."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def watch_page(page: Any, origin: str) -> None:
    """Keep what the page asks for beyond the app, and its errors, as ``page.foreign`` and ``page.errors``."""
    page.foreign, page.errors = [], []
    allowed = (origin, "data:", "blob:", "file:")
    page.context.on(
        "request", lambda r: None if r.url.startswith(allowed) else page.foreign.append(r.url)
    )
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on(
        "dialog", lambda dialog: (page.foreign.append(f"dialog {dialog.message}"), dialog.dismiss())
    )
    page.on("popup", lambda popup: page.foreign.append(f"popup {popup.url}"))
