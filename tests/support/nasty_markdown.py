# ruff: noqa: E501 - a sample is one string
"""Markdown that is hard to align with its rendering, and text that must stay inert."""

FIBONACCI = '''Here is code:

```python
def fib(n):  # print python print
    """python"""
    print("hello *not bold* _not italic_", n)
    return n if n < 2 else fib(n - 1) + fib(n - 2)
```

and `inline *code*` with ``a ` tick``, then **print**.
'''

CORPUS = {
    "plain": "One line.\nAnother line, with a very-long-word and 3.14 numbers; done!",
    "emphasis": "**bold** *italic* ***both*** ~~gone~~ __b__ _i_ 2 * 3 * 4 snake_case_name a*b*c",
    "headings": "# One\n\n## Two ##\n\nThree\n=====\n\nFour\n----\n\n### 5. Five `x`",
    "lists": (
        "1. 10 apples\n2. 20 pears\n   - red * green\n   - - deep\n3. 3\n\n* star\n+ plus\n- [x] done\n- [ ] open"
    ),
    "number-in-text": "The answer is\n42. It was never 7. or 8) though.\n\n1986\\. A great year.",
    "code": FIBONACCI,
    "nested-code": "- item\n\n  ```js\n  const a = `x ${1 + 1}`; // js\n  ```\n\n- after js\n\n> ```\n> quoted\n> ```",
    "tilde-fence": "~~~text\n```\nnot a fence\n```\n~~~\nafter text",
    "open-fence": "Starts:\n\n```c\nint main(void) { return 0; }",
    "table": (
        "| Name | Value |\n|:-----|------:|\n| a\\|b | `1|2` |\n| **c** | [d](http://x.y) |\n\nAfter the table."
    ),
    "links": (
        "See [the site](https://example.com/a_(b) \"title\") and <https://example.com/auto> or "
        "https://bare.example/path_x and [ref][r].\n\n[r]: https://example.com/ref 'title'\n\nEnd of links."
    ),
    "image": "Before ![alt text](https://example.com/x.png) after.",
    "quotes": "> one\n> two *three*\n>\n> > deeper\n\nout",
    "entities": "A &amp; B &lt;tag&gt; &copy; AT&T &#65; x & y &nbsp; end",
    "escapes": r"\*not italic\* \# no heading \[no link\] 1\. \\ back \`tick\`",
    "html": "A <b>bold</b> tag, <br> a break, <div class='x'>block</div> and a < b > c.",
    "math": "Euler: $$e^{i\\pi} + 1 = 0$$ and \\(a^2 + b^2\\) cost $5 or $6.",
    "emoji": "Family 👨‍👩‍👧‍👦 flag 🇩🇪 thumbs 👍🏽 math 𝔘𝔫𝔦 combining é ñ 中文字 العربية עברית.",
    "rules": "above\n\n---\n\nbetween\n\n* * *\n\nbelow",
    "repeats": "a a a a a a a a a a\n\n- a\n- a\n- a\n\n`a` a **a** a\n\n```\na\na\n```\na",
    "tabs": "Makefile:\n\n```make\nall:\n\tcc -o x x.c\n\t@echo $(X) && true\n```\n",
    "brackets": "array[0](1) and [unlinked] (spaced) [a][ ] f(x)[i] {json: [1, 2]}",
    "long": "\n\n".join(
        f"{n}. Item **{n}** has `code{n}` and [link {n}](https://example.com/{n}) in *row {n}*." for n in range(1, 40)
    ),
}  # fmt: skip

ATTACK = """<img src=x onerror="window.hacked=1"> <style>body{display:none}</style>
<form action="https://evil.example"><input name=q><button>go</button></form>
<script>window.hacked=2</script> ${window.hacked=3} {{window.hacked=4}} `${window.hacked=5}`
[click](javascript:window.hacked=6) ![pixel](https://evil.example/p.png) <iframe src="https://evil.example"></iframe>

- ```
<img src=x onerror="window.hacked=7"> <div style="position:fixed;inset:0;z-index:9999;background:red">cover</div>

<svg onload="window.hacked=8"><a href="javascript:window.hacked=9">x</a></svg>
    ```
<img src="https://evil.example/q.png">
"""

# Each of these wants to run, load, style, cover or send something.
HOSTILE = {
    "script": "<script>window.hacked=1</script><script src=https://evil.example/x.js></script>",
    "image": "<img src=x onerror=window.hacked=1> ![p](https://evil.example/p.png) ![](//evil.example/q.png)",
    "reference-image": "![a][r]\n\n[r]: https://evil.example/r.png",
    "style": "<style>*{display:none!important}</style><link rel=stylesheet href=https://evil.example/s.css>",
    "form": "<form action=https://evil.example><input name=q value=1><button>Log in</button></form>",
    "frame": "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe><object data=https://evil.example></object>",
    "svg": "<svg><image href=https://evil.example/i.png /><script>window.hacked=1</script></svg>",
    "math": "$$\\href{javascript:window.hacked=1}{x} \\includegraphics{https://evil.example/m.png}$$ \\(\\url{javascript:1}\\)",
    "template": "${window.hacked=1} {{window.hacked=2}} <%= window.hacked=3 %>",
    "links": "[a](javascript:window.hacked=1) [b](data:text/html,<script>1</script>) [c](vbscript:x)",
    "cover": "<div style='position:fixed;inset:0;z-index:99999;background:#f00'>x</div><a style='position:fixed;inset:0' href=https://evil.example>.</a>",
    "media": "<video src=https://evil.example/v.mp4 autoplay></video><audio src=https://evil.example/a.mp3></audio><base href=https://evil.example/>",
    "meta": "<meta http-equiv=refresh content='0;url=https://evil.example'><body onload=window.hacked=1>",
    "mermaid": "```mermaid\ngraph TD\nA[<img src=x onerror=window.hacked=1>] --> B\nclick A \"javascript:window.hacked=1\"\n```",
    "code": "```html\n<img src=https://evil.example/c.png onerror=window.hacked=1>\n```\n\n`<script>window.hacked=1</script>`",
}  # fmt: skip
