/* Reads Gradio's stream of updates without holding a connection, if too many tabs do: a browser opens six to one
server for all its tabs. The server then answers with what has come, and is asked again a little later. Gradio's
script sees one stream, which goes on. */
(() => {
  "use strict";

  const SHORTEST_MS = 80;
  const LONGEST_MS = 500;
  const fetchPlainly = window.fetch.bind(window);
  const asking = new Set(); // addresses of the streams that no connection holds

  window.fetch = (input, init) => {
    const isStream = input instanceof Request && input.method === "GET"
      && new URL(input.url).pathname.endsWith("/gradio_api/queue/data");
    return isStream ? follow(input) : fetchPlainly(input, init);
  };

  async function follow(request) {
    const address = new URL(request.url);
    address.searchParams.set("stream", crypto.getRandomValues(new Uint32Array(4)).join("-"));
    let nRead = 0;
    let pauseMs = SHORTEST_MS; // longer and longer while nothing comes
    let answer;
    let reader;
    const isPart = () => answer.headers.get("eagle-stream") === "part";
    const ask = async () => {
      address.searchParams.set("from", nRead);
      answer = await fetchPlainly(new Request(address, request));
      if (!answer.ok) throw answer;
      if (isPart()) asking.add(address);
      else asking.delete(address);
      reader = answer.body.getReader();
    };
    const leave = () => {
      if (asking.delete(address)) navigator.sendBeacon(address);
    };
    const pull = async (controller) => {
      let { done, value } = await reader.read();
      while (done && isPart()) {
        await pause(pauseMs);
        pauseMs = Math.min(2 * pauseMs, LONGEST_MS);
        await ask();
        ({ done, value } = await reader.read());
      }
      if (done) {
        controller.close();
        return;
      }
      nRead += value.length;
      pauseMs = SHORTEST_MS;
      controller.enqueue(value);
    };
    const cancel = () => {
      leave();
      reader.cancel().catch(() => undefined); // it has ended already
    };
    try {
      await ask();
    } catch (failed) {
      if (failed instanceof Response) return failed;
      throw failed;
    }
    request.signal.addEventListener("abort", leave);
    return new Response(new ReadableStream({ pull, cancel }), { status: answer.status, headers: answer.headers });
  }

  function pause(forMs) {
    /* A little while; a tab that comes into view waits no longer. */
    return new Promise((resolve) => {
      const done = () => {
        clearTimeout(timer);
        document.removeEventListener("visibilitychange", done);
        resolve();
      };
      const timer = setTimeout(done, forMs);
      document.addEventListener("visibilitychange", done);
    });
  }

  addEventListener("pagehide", () => {
    for (const address of asking) navigator.sendBeacon(address);
  });
})();
