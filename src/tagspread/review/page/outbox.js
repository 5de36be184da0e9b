// Answers on their way to the server. They are kept in the browser until the server says that they are on its disk, so
// that neither a server that was killed, nor a full disk, nor a closed tab loses one. Each has a random name, by which
// the server recognizes one that it has already.

const RETRY = 2000; // milliseconds
const ABANDONED = 15000; // a tab that did not write for so long is gone; its answers are sent by another tab

export class Refused extends Error {}

export async function post(path, body) {
  const response = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    cache: "no-store",
  });
  return await read(response);
}

export async function get(path) {
  return await read(await fetch(path, { cache: "no-store" }));
}

async function read(response) {
  const text = await response.text();
  let found = null;
  try {
    found = JSON.parse(text);
  } catch {
    found = { message: text };
  }
  if (response.ok) return found;
  const error = new Refused(found.message || `The server answered ${response.status}.`);
  error.status = response.status;
  throw error;
}

export class Outbox {
  // run: identifier of the run; page: of this page; changed(waiting, message): called when either changes
  constructor(run, page, changed) {
    this.prefix = `tagspread-review:${run}:`;
    this.key = this.prefix + page;
    this.changed = changed;
    this.steps = [];
    this.sending = false;
    this.message = "";
    this.problem = ""; // about a step that the server refused for good
    this.orphaned = false;
    this.adopt();
    setInterval(() => this.steps.length && this.store(), ABANDONED / 3);
  }

  // take over the steps of tabs that were closed, or whose server was killed, before all was saved
  adopt() {
    let storage = [];
    try {
      storage = Object.keys(localStorage).filter((key) => key.startsWith(this.prefix) && key !== this.key);
    } catch {
      return; // the browser keeps nothing; then a closed tab loses what was not sent
    }
    for (const key of storage) {
      try {
        const left = JSON.parse(localStorage.getItem(key));
        if (Date.now() - left.at < ABANDONED && left.at <= Date.now()) {
          setTimeout(() => this.adopt(), ABANDONED);
          continue;
        }
        this.steps.unshift(...left.steps.map((step) => ({ ...step, adopted: true })));
      } catch {
        // damaged: nothing can be read from it
      }
      localStorage.removeItem(key);
    }
    if (this.steps.length) {
      this.store();
      this.send();
    }
  }

  store() {
    try {
      if (this.steps.length) {
        const steps = this.steps.map(({ path, body }) => ({ path, body }));
        localStorage.setItem(this.key, JSON.stringify({ at: this.orphaned ? 0 : Date.now(), steps }));
      } else localStorage.removeItem(this.key);
    } catch {
      // the browser's storage is full or switched off; the steps are still in this page
    }
  }

  // keep a step and send it; `then` is called with the server's reply
  add(path, body, then) {
    this.steps.push({ path, body, then });
    this.store();
    this.changed(this.steps.length, this.message);
    this.send();
  }

  async send() {
    if (this.sending) return;
    this.sending = true;
    while (this.steps.length) {
      const step = this.steps[0];
      let reply = null;
      try {
        reply = await post(step.path, step.body);
      } catch (error) {
        const wrong = error instanceof Refused && [400, 404, 422].includes(error.status);
        if (wrong) {
          // the server will never take it, and the steps behind it must not wait for it
          this.problem = `Not saved: ${error.message}`;
        } else {
          this.message = error instanceof Refused ? error.message : "The server does not answer. Is it still running?";
          this.orphaned = error.status === 403; // the server has a new token: its new page may send the steps
          this.store();
          this.changed(this.steps.length, this.message);
          await new Promise((done) => setTimeout(done, RETRY));
          continue;
        }
      }
      this.steps.shift();
      this.store();
      this.message = "";
      this.changed(this.steps.length, this.problem);
      if (reply && step.then) step.then(reply);
    }
    this.sending = false;
  }
}
