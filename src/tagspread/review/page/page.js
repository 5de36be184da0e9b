// The review page. What the server sends is shown as text only, never as markup.
import { Outbox, get, post } from "./outbox.js";

const AHEAD = 6; // images that are loaded before they are shown
const SHOWN = 12; // tags without a reason to be shown, before the rest is folded away
const TINY = 100; // pixels; a smaller image is enlarged without blurring it
const PAGE = crypto.getRandomValues(new Uint32Array(4)).join("-"); // never stored: a duplicated tab is another page
const el = (id) => document.getElementById(id);

// why an image is shown, by the strategy that queued it; the tags that it was chosen for follow
const REASONS = {
  border: "the model is in doubt about",
  doubtful: "the model is in doubt about",
  rare: "may show a tag that has few labels:",
  disagree: "predictions disagree on",
  diverse: "unlike the labeled images",
  random: "drawn at random",
  open: "",
};

let run; // what /api/overview says
let outbox;
let who = "";
let mode = "image";
let items = []; // images of this page: seen, shown, and loaded ahead
let at = 0; // the one that is shown
let selected = 0; // the chosen chip
let folded = true;
let exhausted = false; // the server has no further images with this filter
let asking = null;
let steps = []; // what z undoes: the names of this page's steps
let grid = [];
let focused = 0; // the chosen image of the grid
let side = "called";
let watch = { since: performance.now(), spent: 0 };
const loaded = new Map(); // loaded images, by number
const exampleLists = new Map();

// --- small helpers ---------------------------------------------------------------------------------------------------

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const percent = (share) => `${Math.round(100 * share)} %`;
const batch = () => crypto.getRandomValues(new Uint32Array(4)).join("-");
const count = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;

function announce(text) {
  el("live").textContent = text;
}

function complain(text) {
  el("problem").textContent = text;
  el("problem").hidden = !text;
}

async function attempt(request) {
  try {
    const reply = await request;
    if (el("problem").dataset.kind === "request") complain("");
    return reply;
  } catch (error) {
    el("problem").dataset.kind = "request";
    complain(error.status ? error.message : "The server does not answer. Is it still running?");
    return null;
  }
}

// seconds since the last step, without the time in which the page was hidden
function seconds() {
  const spent = watch.spent + (document.hidden ? 0 : performance.now() - watch.since);
  watch = { since: performance.now(), spent: 0 };
  return Math.min(3600, Math.round(spent) / 1000);
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) watch.spent += performance.now() - watch.since;
  watch.since = performance.now();
});

// a tag may be called "constructor", which every object has
const answerTo = (item, tag) => (Object.hasOwn(item.answers, tag) ? item.answers[tag] : undefined);

function put(item, tag, answer) {
  item.answers = { ...item.answers, [tag]: { answer, who } };
}

const from = (more = {}) => ({ page: PAGE, who, ...more });

// --- progress and saving ---------------------------------------------------------------------------------------------

function showProgress(progress) {
  el("bar").value = progress.images ? progress.done / progress.images : 0;
  let text = `${progress.done.toLocaleString("en")} of ${progress.images.toLocaleString("en")}`;
  if (progress.checked) {
    const [low, high] = [100 * progress.low, 100 * progress.high].map(Math.round);
    text += `; pseudo-labels confirmed: ${percent(progress.confirmed)}, interval ${low} to ${high}`;
  }
  el("progress").textContent = text;
  el("progress").title = progress.checked
    ? `${progress.checked} pseudo-labels of images that were drawn at random; 90 % interval`
    : "The share of confirmed pseudo-labels appears once images that were drawn at random are reviewed.";
  el("conflicts").hidden = !progress.conflicts;
  el("conflicts").textContent = count(progress.conflicts, "conflict");
}

function showSaving(waiting, message) {
  el("saved").textContent = waiting ? `${count(waiting, "step")} not saved yet` : "All saved";
  el("saved").classList.toggle("warn", waiting > 0 && message !== "");
  if (message) {
    el("problem").dataset.kind = "saving";
    complain(waiting ? `${message} ${count(waiting, "step")} of yours will be saved when it works again.` : message);
  } else if (el("problem").dataset.kind === "saving") complain("");
}

function record(answers, visited, more = {}) {
  const name = batch();
  steps.push(name);
  outbox.add("api/answers", from({ batch: name, answers, visited, seconds: seconds(), ...more }), (reply) => {
    showProgress(reply.progress);
    if (outbox.steps.length) return; // newer answers are on their way
    reply.items.forEach(refresh);
  });
  return name;
}

// take over what the server knows about an image
function refresh(item) {
  for (const list of [items, grid]) {
    const k = list.findIndex((one) => one.image === item.image);
    if (k >= 0) list[k] = { ...list[k], answers: item.answers, visited: item.visited };
  }
  if (mode === "image" && items[at]?.image === item.image) showChips();
}

function undo() {
  outbox.add("api/undo", from({ batch: steps.pop() ?? null }), (reply) => {
    showProgress(reply.progress);
    reply.items.forEach(refresh);
    if (!reply.images.length) {
      announce("There is nothing to undo.");
      return;
    }
    const words = reply.answers.map((one) => `${one.tag}: ${one.answer}`);
    announce(words.length ? `Undone: ${words.slice(0, 5).join(", ")}${words.length > 5 ? " …" : ""}` : "Undone: skipped");
    exhausted = false;
    if (mode === "grid") {
      const missing = reply.items.filter((item) => !grid.some((one) => one.image === item.image));
      grid = [...missing, ...grid];
      showGrid(grid.findIndex((one) => one.image === reply.images[0]));
      return;
    }
    const k = items.findIndex((one) => one.image === reply.images[0]);
    if (k >= 0) at = k;
    else items.splice(at, 0, reply.items[0]);
    show();
  });
}

// --- one image, all tags ---------------------------------------------------------------------------------------------

function filters() {
  const tag = el("filter-tag").value;
  const folder = el("filter-folder").value;
  return { status: el("filter-status").value, tag: tag || null, folder: folder || null };
}

async function fill() {
  if (asking || exhausted || items.length - at > AHEAD) return;
  const keep = items.map((item) => item.image);
  asking = attempt(post("api/next", from({ count: 2 * AHEAD, keep, ...filters() })));
  const reply = await asking;
  asking = null;
  if (!reply) {
    setTimeout(fill, 3000);
    return;
  }
  const wasEmpty = at >= items.length;
  items.push(...reply.items.filter((item) => !keep.includes(item.image)));
  exhausted = reply.items.length === 0;
  showProgress(reply.progress);
  preload();
  if (wasEmpty) show();
}

function preload() {
  for (const item of items.slice(at, at + AHEAD + 1)) imageOf(item);
  for (const number of loaded.keys()) {
    const k = items.findIndex((item) => item.image === number);
    if (k < at - 2 || k > at + AHEAD) loaded.delete(number);
  }
}

function imageOf(item) {
  let image = loaded.get(item.image);
  if (!image) {
    image = make("img", { src: `image/${item.image}/large`, alt: `Image ${item.name}`, draggable: false });
    image.decode().then(
      () => image.classList.toggle("tiny", Math.max(image.naturalWidth, image.naturalHeight) < TINY),
      () => explain(image),
    );
    loaded.set(item.image, image);
  }
  return image;
}

// say why an image is not shown
async function explain(image) {
  let message = "The image cannot be shown.";
  try {
    const reply = await fetch(image.src);
    if (!reply.ok) message = JSON.parse(await reply.text()).message;
  } catch {
    message = "The server does not answer. Is it still running?";
  }
  const text = make("p", { className: "gone", role: "alert", textContent: message });
  const number = Number(image.src.split("/").at(-2));
  if (loaded.has(number)) loaded.set(number, text);
  image.replaceWith(text);
}

function nothingLeft() {
  const { status, tag, folder } = filters();
  if (status !== "open" || tag || folder) return "No image is left with this filter.";
  return "No image is left: all are reviewed, or shown to somebody else. Your answers are saved; train on them next.";
}

// show no image, until one is there
function wait() {
  for (const id of ["tags", "caption", "examples"]) el(id).hidden = true;
  for (const id of ["skip", "unknown", "save"]) el(id).disabled = true;
  el("figure").replaceChildren(make("p", { className: "gone", textContent: exhausted ? nothingLeft() : "Loading …" }));
  el("grid").replaceChildren();
}

function show() {
  const item = items[at];
  el("figure").classList.remove("full");
  el("back").disabled = at === 0;
  watch = { since: performance.now(), spent: 0 };
  if (!item) {
    wait();
    fill();
    return;
  }
  el("tags").hidden = el("caption").hidden = false;
  for (const id of ["skip", "unknown", "save"]) el(id).disabled = false;
  el("figure").replaceChildren(imageOf(item));
  const why = [REASONS[item.strategy] ?? item.strategy, item.ask.join(", ")].filter(Boolean).join(" ");
  el("caption").textContent = [item.name, why].filter(Boolean).join(" · ");
  selected = 0;
  folded = true;
  el("find").value = "";
  showChips();
  announce(`Image ${item.name}. Suggested: ${suggested(item).join(", ") || "no tag"}.`);
  preload();
  fill();
}

const says = (item, k) => k < run.scored && run.thresholds[k] !== null && item.scores[k] >= run.thresholds[k];
const suggested = (item) => run.tags.filter((_, k) => says(item, k));
// what a tag is taken for if nothing is changed
const shown = (item, k) => answerTo(item, run.tags[k])?.answer ?? (says(item, k) ? "yes" : "no");

// the tags that are shown, suggested ones first, then by probability: if there are many tags, those that are suggested,
// answered, asked about or added, and the most probable ones
function listed(item) {
  const find = el("find").value.trim().toLowerCase();
  const rank = (k) => (says(item, k) ? 2 : 0) + (item.scores[k] ?? -1);
  const order = run.tags.map((_, k) => k).sort((a, b) => rank(b) - rank(a) || a - b);
  if (find) return order.filter((k) => run.tags[k].toLowerCase().includes(find));
  const added = order.filter((k) => k >= run.scored);
  const scored = order.filter((k) => k < run.scored);
  if (!folded || run.tags.length <= 2 * SHOWN) return [...scored, ...added];
  const kept = scored.filter((k, place) => {
    const tag = run.tags[k];
    return place < SHOWN || answerTo(item, tag) || item.ask.includes(tag) || says(item, k);
  });
  return [...kept, ...added];
}

function showChips() {
  const item = items[at];
  if (!item) return;
  const order = listed(item);
  selected = Math.max(0, Math.min(selected, order.length - 1));
  const hadFocus = el("chips").contains(document.activeElement);
  el("chips").replaceChildren(...order.map((k, place) => make("li", {}, chip(item, k, place))));
  const hidden = run.tags.length - order.length;
  el("more").hidden = hidden === 0 || el("find").value.trim() !== "";
  el("more").textContent = `Show ${count(hidden, "further tag")}`;
  const yes = run.tags.filter((_, k) => shown(item, k) === "yes").length;
  el("save-words").replaceChildren("Save ", make("span", { className: "wide", textContent: "as shown " }), `(${yes} yes)`);
  if (hadFocus) el("chips").querySelector("[tabindex='0']")?.focus();
  showExamples(run.tags[order[selected]]);
}

function chip(item, k, place) {
  const tag = run.tags[k];
  const answer = answerTo(item, tag);
  const score = item.scores[k] ?? null;
  const state = answer ? answer.answer : says(item, k) ? "suggested" : "open";
  const sign = { yes: "✓", no: "✗", unknown: "?", suggested: "✓", open: "" }[state];
  const words = {
    yes: "answered yes", no: "answered no", unknown: "answered unknown", suggested: "suggested", open: "not suggested",
  }[state];
  const parts = [make("span", { className: "sign", "aria-hidden": "true", textContent: sign })];
  if (place < 10) parts.unshift(make("kbd", { "aria-hidden": "true", textContent: String((place + 1) % 10) }));
  parts.push(make("span", { className: "name", textContent: tag }));
  if (answer?.other) parts.push(make("span", { className: "other", textContent: `⚠ ${answer.other}` }));
  parts.push(make("span", { className: "score", textContent: score === null ? "new" : percent(score) }));
  if (score !== null) {
    const bar = make("span", { className: "bar", "aria-hidden": "true" });
    bar.style.width = `${100 * score}%`;
    parts.push(bar);
  }
  const button = make("button", { type: "button", className: `chip ${state}`, tabIndex: place === selected ? 0 : -1 }, ...parts);
  button.classList.toggle("selected", place === selected);
  button.classList.toggle("asked", item.ask.includes(tag));
  button.setAttribute("aria-pressed", state === "yes" || state === "suggested");
  const conflict = answer?.other ? `, in conflict with ${answer.other}` : "";
  button.setAttribute("aria-label", `${tag}, ${score === null ? "new tag" : percent(score)}, ${words}${conflict}`);
  button.dataset.tag = tag;
  button.addEventListener("click", () => {
    selected = place;
    give(k, shown(item, k) === "yes" ? "no" : "yes", false);
  });
  return button;
}

function choose(place, focus = true) {
  selected = place;
  showChips();
  const button = el("chips").querySelector(".selected");
  if (focus) button?.focus({ preventScroll: true });
  button?.scrollIntoView({ block: "nearest" });
}

// answer about one tag
function give(k, answer, advance = true) {
  const item = items[at];
  if (!item || k === undefined) return;
  put(item, run.tags[k], answer);
  record([{ image: item.image, tag: run.tags[k], answer }], []);
  announce(`${run.tags[k]}: ${answer}`);
  const places = el("chips").childElementCount;
  if (advance && selected + 1 < places) choose(selected + 1);
  else showChips();
}

const giveSelected = (answer) => items[at] && give(listed(items[at])[selected], answer);

// answer about all tags that have no answer yet, as they are shown
function save() {
  const item = items[at];
  if (!item) return;
  const rest = run.tags.map((tag, k) => ({ image: item.image, tag, answer: shown(item, k) }));
  const fresh = rest.filter((one) => !answerTo(item, one.tag));
  for (const one of fresh) put(item, one.tag, one.answer);
  item.visited = true;
  record(fresh, [item.image]);
  move(1);
}

function skip() {
  const item = items[at];
  if (!item) return;
  if (!item.visited) {
    item.visited = true;
    record([], [item.image]);
  }
  move(1);
}

function move(by) {
  at = Math.max(0, Math.min(items.length, at + by));
  show();
}

function fullSize() {
  const item = items[at];
  const figure = el("figure");
  if (!item || mode !== "image") return;
  if (figure.classList.toggle("full")) {
    const image = make("img", { src: `image/${item.image}/full`, alt: `Image ${item.name}, full size` });
    image.addEventListener("error", () => explain(image));
    figure.replaceChildren(image);
    figure.focus();
    announce("Full size. The arrows scroll; f or Escape closes it.");
  } else {
    figure.replaceChildren(imageOf(item));
    announce("Fitted to the window");
  }
}

async function showExamples(tag) {
  if (!tag) return;
  if (!exampleLists.has(tag)) {
    exampleLists.set(tag, get(`api/examples?tag=${encodeURIComponent(tag)}`).catch(() => null));
  }
  const reply = await exampleLists.get(tag);
  if (!reply) {
    exampleLists.delete(tag);
    return;
  }
  if (el("examples").dataset.tag === tag && !el("examples").hidden) return;
  el("examples").hidden = false;
  el("examples").dataset.tag = tag;
  el("examples-title").textContent = reply.images.length ? `Examples of ${tag}` : `No example of ${tag} yet`;
  el("example-list").replaceChildren(
    ...reply.images.map((k) => make("li", {}, make("img", { src: `image/${k}/small`, alt: `Example of ${tag}`, loading: "lazy" }))),
  );
}

async function addTag(event) {
  event.preventDefault();
  const name = el("new-tag-name").value;
  const reply = await attempt(post("api/tags", from({ name })));
  if (!reply) return;
  setTags(reply.tags);
  el("new-tag-name").value = "";
  const tag = reply.tags.at(-1);
  announce(`Added the tag ${tag}`);
  if (items[at]) choose(listed(items[at]).findIndex((k) => run.tags[k] === tag));
}

function setTags(tags) {
  run.tags = tags;
  for (const [id, all] of [["filter-tag", "all"], ["grid-tag", null]]) {
    const before = el(id).value;
    const usable = id === "grid-tag" ? tags.slice(0, run.scored) : tags;
    const options = usable.map((tag) => make("option", { value: tag, textContent: tag }));
    el(id).replaceChildren(...(all ? [make("option", { value: "", textContent: all })] : []), ...options);
    if (usable.includes(before)) el(id).value = before;
  }
}

function filterChanged() {
  const given = filters();
  const words = [given.status === "open" ? "" : el("filter-status").selectedOptions[0].text, given.tag, given.folder];
  el("filter-words").textContent = words.filter(Boolean).map((word) => ` · ${word}`).join("");
  restart();
}

async function restart() {
  if (asking) await asking;
  items = [];
  grid = [];
  at = 0;
  exhausted = false;
  loaded.clear();
  wait();
  await attempt(post("api/release", from()));
  if (mode === "grid") await nextPage();
  else show();
}

// --- one tag, many images --------------------------------------------------------------------------------------------

const perPage = () => (window.innerWidth < 700 ? 12 : window.innerHeight < 1000 ? 20 : 30);
const wrong = () => (side === "called" ? "no" : "yes"); // the answer that a mark means
const right = () => (side === "called" ? "yes" : "no");

async function nextPage() {
  const tag = el("grid-tag").value;
  const folder = el("filter-folder").value || null;
  el("grid-hint").textContent =
    side === "called" ? `Mark the images without “${tag}”.` : `Mark the images that do have “${tag}”.`;
  await settled();
  const reply = await attempt(post("api/grid", from({ count: perPage(), tag, side, folder })));
  if (!reply) return;
  grid = reply.items;
  watch = { since: performance.now(), spent: 0 };
  showGrid(0);
  showExamples(tag);
  announce(grid.length ? `${count(grid.length, "image")} for ${tag}` : `No image is left for ${tag}.`);
}

// wait until the answers so far are saved: the server then knows which images are left
async function settled() {
  for (let tries = 0; outbox.steps.length && tries < 100; tries += 1) await new Promise((done) => setTimeout(done, 20));
}

function showGrid(place = focused) {
  focused = Math.max(0, Math.min(place, grid.length - 1));
  const tag = el("grid-tag").value;
  const hadFocus = el("grid").contains(document.activeElement);
  const tiles = grid.map((item, k) => tile(item, k, tag));
  el("grid").replaceChildren(...tiles.map((one) => make("li", {}, one)));
  el("grid-empty").hidden = grid.length > 0;
  el("grid-empty").textContent =
    `No image is left: all those that the model ${side === "called" ? "calls" : "does not call"} “${tag}” are answered, ` +
    "or are shown to somebody else.";
  const marked = grid.filter((item) => answerTo(item, tag)).length;
  const rest = !grid.length ? "nothing" : `other ${grid.length - marked} ${side === "called" ? "as right" : "as not missed"}`;
  el("save-words").replaceChildren("Save ", ...(grid.length ? [make("span", { className: "wide", textContent: "the " })] : []), rest);
  el("save").disabled = el("unknown").disabled = !grid.length;
  el("skip").disabled = el("back").disabled = true;
  if (hadFocus) tiles[focused]?.focus({ preventScroll: true });
}

function tile(item, k, tag) {
  const answer = answerTo(item, tag)?.answer ?? "";
  const score = item.scores[run.tags.indexOf(tag)];
  const sign = { yes: "✓ yes", no: "✗ no", unknown: "? unknown" }[answer] ?? "";
  const image = make("img", { src: `image/${item.image}/small`, alt: "" });
  const button = make(
    "button",
    { type: "button", className: `tile ${answer}`, tabIndex: k === focused ? 0 : -1 },
    image,
    make("span", { className: "score", textContent: percent(score) }),
    make("span", { className: "verdict", textContent: sign }),
  );
  image.addEventListener("error", () => image.replaceWith(make("span", { className: "gone", textContent: "cannot be shown" })));
  button.classList.toggle("selected", k === focused);
  button.setAttribute("aria-pressed", answer === wrong());
  button.setAttribute("aria-label", `Image ${k + 1} of ${grid.length}, ${item.name}, ${tag} ${percent(score)}, ${answer || "not marked"}`);
  button.addEventListener("click", () => {
    focused = k;
    mark(wrong());
  });
  return button;
}

// answer about one image of the grid; the same answer again takes it back
function mark(answer) {
  const item = grid[focused];
  const tag = el("grid-tag").value;
  if (!item) return;
  if (answerTo(item, tag)?.answer === answer && item.step) {
    const name = item.step;
    item.step = null;
    delete item.answers[tag];
    steps = steps.filter((one) => one !== name);
    outbox.add("api/undo", from({ batch: name }), (reply) => showProgress(reply.progress));
    announce(`${item.name}: not marked`);
  } else {
    put(item, tag, answer);
    item.step = record([{ image: item.image, tag, answer }], [], { grid: true });
    announce(`${item.name}: ${answer}`);
  }
  showGrid();
}

async function savePage() {
  const tag = el("grid-tag").value;
  const rest = grid.filter((item) => !answerTo(item, tag));
  if (!grid.length) return;
  if (rest.length) record(rest.map((item) => ({ image: item.image, tag, answer: right() })), [], { grid: true });
  await nextPage();
  focusTile();
}

function focusTile() {
  el("grid").querySelector("[tabindex='0']")?.focus({ preventScroll: true });
}

function moveInGrid(key) {
  const tiles = [...el("grid").querySelectorAll(".tile")];
  if (!tiles.length) return;
  const top = tiles[0].getBoundingClientRect().top;
  const columns = Math.max(1, tiles.findIndex((one) => one.getBoundingClientRect().top > top + 4));
  const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[key];
  const place = focused + by;
  if (place >= 0 && place < grid.length) showGrid(place);
  focusTile();
  el("grid").querySelector("[tabindex='0']")?.scrollIntoView({ block: "nearest" });
}

async function setMode(wanted) {
  if (mode === wanted) return;
  mode = wanted;
  const isGrid = mode === "grid";
  el("stage").hidden = el("tags").hidden = isGrid;
  el("grid-stage").hidden = !isGrid;
  document.body.classList.toggle("grid-mode", isGrid);
  el("mode-image").setAttribute("aria-pressed", !isGrid);
  el("mode-grid").setAttribute("aria-pressed", isGrid);
  el("examples").hidden = true;
  if (isGrid) {
    const item = items[at];
    const tag = item && run.tags[listed(item)[selected]];
    if (tag && run.tags.indexOf(tag) < run.scored) el("grid-tag").value = tag;
  }
  await restart();
  if (isGrid) focusTile();
}

async function setSide(wanted) {
  side = wanted;
  el("side-called").setAttribute("aria-pressed", side === "called");
  el("side-missed").setAttribute("aria-pressed", side === "missed");
  await restart();
}

// --- keys ------------------------------------------------------------------------------------------------------------

const ANSWERS = { y: "yes", n: "no", u: "unknown" };

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const target = event.target;
  const writing = target.matches("input, select, textarea");
  if (writing) {
    if (event.key === "Escape") target.blur();
    if (event.key === "Enter" && target === el("find")) choose(0);
    if (event.key === "ArrowDown" && target === el("find")) {
      event.preventDefault();
      choose(0);
    }
    return;
  }
  const onControl = target.matches("button:not(.chip):not(.tile), summary");
  const handled = mode === "grid" ? gridKey(event, onControl) : imageKey(event, onControl);
  if (handled || commonKey(event)) event.preventDefault();
}

function commonKey(event) {
  const actions = {
    z: undo,
    g: () => setMode(mode === "grid" ? "image" : "grid"),
    "?": () => el("help").showModal(),
  };
  const action = actions[event.key];
  if (action) action();
  return Boolean(action);
}

function imageKey(event, onControl) {
  const item = items[at];
  const key = event.key;
  const isFull = el("figure").classList.contains("full");
  if (key === "f" || (key === "Escape" && isFull)) fullSize();
  else if (isFull && key.startsWith("Arrow")) return false; // the browser scrolls
  else if (key === "ArrowLeft") move(-1);
  else if (key === "ArrowRight") skip();
  else if (key === "t") el("new-tag-name").focus();
  else if (key === "/") el("find").focus();
  else if (!item) return false;
  else if (key in ANSWERS) giveSelected(ANSWERS[key]);
  else if (key === "ArrowUp" || key === "ArrowDown") {
    const places = listed(item).length;
    choose((selected + (key === "ArrowUp" ? places - 1 : 1)) % Math.max(1, places));
  } else if (/^[0-9]$/.test(key)) {
    const place = (Number(key) + 9) % 10;
    if (place < listed(item).length) choose(place);
  } else if (key === "Enter" && !onControl) save();
  else if (key === " " && !onControl) {
    const k = listed(item)[selected];
    give(k, shown(item, k) === "yes" ? "no" : "yes", false);
  } else return false;
  return true;
}

function gridKey(event, onControl) {
  const key = event.key;
  if (key.startsWith("Arrow")) moveInGrid(key);
  else if (key in ANSWERS) mark(ANSWERS[key]);
  else if (key === "Enter" && !onControl) savePage();
  else if (key === " " && !onControl) mark(wrong());
  else return false;
  return true;
}

// --- start -----------------------------------------------------------------------------------------------------------

function remember(name, value) {
  try {
    if (value === undefined) return localStorage.getItem(name);
    localStorage.setItem(name, value);
  } catch {
    // the browser keeps nothing
  }
  return null;
}

function setName(name) {
  who = name.trim().slice(0, 100) || run.user;
  el("who").value = who;
  el("open-settings").textContent = who;
  el("open-settings").setAttribute("aria-label", `Your name: ${who}`);
}

async function start() {
  run = await attempt(get("api/overview"));
  if (!run) {
    setTimeout(start, 3000);
    return;
  }
  document.title = `Review of ${run.run}`;
  el("title").textContent = run.run;
  setName(remember("tagspread-review:name") || run.user);
  setTags(run.tags);
  const folders = run.folders.filter(Boolean);
  el("filter-folder").replaceChildren(
    make("option", { value: "", textContent: "all" }),
    ...folders.map((folder) => make("option", { value: folder, textContent: folder })),
  );
  outbox = new Outbox(run.id, PAGE, showSaving);
  showSaving(outbox.steps.length, "");
  showProgress(run.progress);
  const actions = {
    "mode-image": () => setMode("image"),
    "mode-grid": () => setMode("grid"),
    "side-called": () => setSide("called"),
    "side-missed": () => setSide("missed"),
    undo,
    back: () => move(-1),
    skip,
    unknown: () => (mode === "grid" ? mark("unknown") : giveSelected("unknown")),
    save: () => (mode === "grid" ? savePage() : save()),
    more: () => {
      folded = false;
      showChips();
    },
    "open-help": () => el("help").showModal(),
    "open-settings": () => el("settings").showModal(),
    conflicts: () => {
      el("filter-status").value = "conflict";
      el("filters").open = true;
      if (mode === "grid") setMode("image");
      filterChanged();
    },
  };
  for (const [id, action] of Object.entries(actions)) el(id).addEventListener("click", action);
  for (const id of ["filter-status", "filter-tag", "filter-folder"]) el(id).addEventListener("change", filterChanged);
  el("grid-tag").addEventListener("change", restart);
  el("find").addEventListener("input", () => {
    selected = 0;
    showChips();
  });
  el("new-tag").addEventListener("submit", addTag);
  el("figure").addEventListener("dblclick", fullSize);
  el("settings").addEventListener("close", () => {
    setName(el("who").value);
    remember("tagspread-review:name", who);
  });
  document.addEventListener("keydown", pressed);
  // after a click or a dialog, the keys belong to the page again: Enter does not press the same button once more
  document.addEventListener("click", (event) => {
    if (event.detail) event.target.closest("button:not(.chip):not(.tile)")?.blur();
  });
  for (const id of ["help", "settings"]) el(id).addEventListener("close", () => document.activeElement.blur());
  setInterval(() => {
    const images = (mode === "grid" ? grid : items.slice(at)).map((item) => item.image);
    if (images.length) post("api/hold", from({ images })).catch(() => null);
  }, (1000 * run.lease_seconds) / 3);
  addEventListener("pagehide", () => {
    navigator.sendBeacon("api/release", new Blob([JSON.stringify(from())], { type: "application/json" }));
  });
  show();
}

start();
