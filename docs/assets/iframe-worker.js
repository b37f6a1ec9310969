// The search runs in a worker, which browsers do not start on a page that was opened from disk. There it runs in a hidden
// frame. Named as Material's plugin "offline" expects: it would add a script from another site otherwise.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      const inside = frame.contentWindow;
      const script = inside.document.createElement("script");
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.started = new Promise((done) => script.addEventListener("load", () => done(inside)));
      script.src = url;
      inside.document.head.append(script);
    }

    async postMessage(data) {
      (await this.started).dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
