// The page: asks for what changed every two seconds, and shows it. Read-only.
import { bytes, duration, el, figure, measure, percent, plot, say } from "./draw.js";

const PERIOD = 2000, TIMEOUT = 10000, HISTORY_PERIOD = 10000, PAGE = 50;
const KINDS = {
  bypass: ["violations", "bypasses the library"], over_limit: ["violations", "holds more memory than allowed"],
  over_time: ["violations", "uses more GPU time than its limit"], ended: ["violations", "process ended by the policy"],
  refused: ["refused", "memory refused"], held_back: ["held", "launches held back"],
};
const GROUPS = { violations: "Bypasses and violations", refused: "Refused memory", held: "Held back" };
const by = id => document.getElementById(id);
const tables = { gpus: new Map(), shares: new Map(), events: new Map() };
const views = { gpus: new Map(), shares: new Map() };
let head = {}, since = "", token = sessionStorage.getItem("token"), wanted = PAGE, open = new Set(), histories = new Map(), historyAt = 0, timer = 0, isAsking = false;

async function ask(path) {
  const response = await fetch(`page/${path}`, { headers: token ? { Authorization: `Bearer ${token}` } : {}, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT) });
  if (response.status === 401) throw Object.assign(new Error("expected the monitor's token"), { unauthorized: true });
  if (!response.ok) throw new Error(`${response.status} ${response.statusText}`);
  return response.json();
}

/** Takes over what changed. */
function merge(update) {
  head = update;
  since = update.version;
  for (const [name, table] of Object.entries(tables)) {
    for (const row of update[name].rows) table.set(row.id, row);
    if (update[name].ids) {
      const ids = new Set(update[name].ids);
      for (const id of table.keys()) if (!ids.has(id)) table.delete(id);
    }
  }
}

async function refresh() {
  clearTimeout(timer);
  // One request at a time: an older answer must not follow a newer one.
  if (document.hidden || isAsking) return;
  isAsking = true;
  try {
    merge(await ask(`state.json?since=${since}`));
    login(false);
    draw();
    if (!performance.getEntriesByName("drawn").length) performance.mark("drawn");
    if (performance.now() - historyAt > HISTORY_PERIOD || [...shown()].some(id => !histories.has(id))) await refreshHistories();
    const isOld = head.age === null || head.age > 10;
    status(isOld ? "lost" : "live", isOld ? "the monitor takes no samples" : "live");
  } catch (error) {
    if (error.unauthorized) login(true);
    else status("lost", `no answer: ${error.message}`);
  }
  isAsking = false;
  // Without the token there is nothing to ask for.
  if (by("login").hidden) timer = setTimeout(refresh, PERIOD);
}

function status(kind, text) {
  by("status").className = kind;
  say(by("status-text"), text);
}

function login(isNeeded) {
  if (isNeeded) {
    status("lost", "a token is required");
    if (token) banner("This is not the monitor's token.");
    token = null;
    sessionStorage.removeItem("token");
  }
  by("login").hidden = !isNeeded;
  by("content").hidden = isNeeded;
}

function banner(text) {
  by("error").hidden = !text;
  say(by("error"), text ?? "");
}

/** Numbers of the rows whose histories are shown. */
function* shown() {
  yield* tables.gpus.keys();
  for (const id of views.shares.keys()) yield id;
}

function completeHistories() {
  refreshHistories().catch(error => status("lost", `no answer: ${error.message}`));
}

async function refreshHistories() {
  historyAt = performance.now();
  const ids = [...shown()], detailed = ids.filter(id => open.has(id));
  for (const [some, points] of [[ids.filter(id => !open.has(id)), 60], [detailed, 360]]) {
    for (let at = 0; at < some.length; at += 100) {
      const found = await ask(`history.json?points=${points}&ids=${some.slice(at, at + 100).join(",")}`);
      for (const [id, series] of Object.entries(found.of)) histories.set(Number(id), { ...series, span: found.span });
    }
  }
  for (const id of histories.keys()) if (!tables.gpus.has(id) && !views.shares.has(id)) histories.delete(id);
  tables.gpus.forEach((gpu, id) => plotBoth(views.gpus.get(id), id, gpu.memory, null, 100));
  views.shares.forEach((view, id) => plotShare(view, tables.shares.get(id)));
}

function plotBoth(view, id, memoryTop, memoryLimit, timeLimit) {
  const series = histories.get(id);
  if (!view || !series) return;
  const past = series.memory.filter(value => value !== null);
  plot(view.memory, series.memory, memoryTop || Math.max(1, ...past), memoryLimit, series.span);
  // A small limit is still seen: the chart goes to twice the limit.
  plot(view.time, series.time, Math.min(100, timeLimit * 2), timeLimit < 100 ? timeLimit : null, series.span);
  if (view.axis) say(view.axis, `${duration(series.span)} ago`);
}

const gpuOf = share => [...tables.gpus.values()].find(gpu => gpu.uuid === share.uuid);
function plotShare(view, share) {
  if (!share || share.memory === undefined) return;
  const total = share.memory_limit ?? gpuOf(share)?.memory;
  plotBoth(view, share.id, total ? total * 1.05 : 0, share.memory_limit, share.time_limit ?? 100);
}

function draw() {
  say(by("node"), head.node);
  document.title = `vgpu ${head.node}`;
  const left = head.left_out ? `${head.left_out} more shares are not shown. ` : "";
  banner(head.nvml_error ? `${left}NVML is unavailable: ${head.nvml_error}` : left);
  drawSummary();
  drawGpus();
  drawEvents();
  drawContainers();
}

function drawSummary() {
  const events = [...tables.events.values()];
  const of = kind => events.filter(event => KINDS[event.kind][0] === kind).length;
  const containers = new Set([...tables.shares.values()].map(share => share.container_id));
  const unlimited = [...tables.gpus.values()].reduce((sum, gpu) => sum + gpu.unlimited_count, 0);
  const items = [
    ["GPUs", tables.gpus.size], ["containers", containers.size], ["refused memory", of("refused"), "warn"], ["held back", of("held")],
    ["violations", of("violations"), "bad"], ["unlimited processes", unlimited, "warn"],
  ];
  const list = by("summary");
  if (!list.children.length) list.append(...items.map(([name]) => el("div", {}, el("dt", {}, name), el("dd"))));
  items.forEach(([, count, kind], nth) => {
    list.children[nth].className = count && kind ? kind : "";
    say(list.children[nth].lastChild, `${count}`);
  });
}

function drawGpus() {
  const list = by("gpus");
  for (const [id, view] of views.gpus) if (!tables.gpus.has(id)) (view.root.remove(), views.gpus.delete(id));
  for (const gpu of [...tables.gpus.values()].sort((a, b) => a.index - b.index)) {
    let view = views.gpus.get(gpu.id);
    if (!view) {
      view = { memory: figure("memory", "Memory"), time: figure("time", "Busy"), title: el("h3"), note: el("p", { class: "note" }), axis: el("span"), more: el("div") };
      view.root = el("li", {}, view.title, view.note, el("div", { class: "pair" }, view.memory.root, view.time.root), el("div", { class: "axis" }, view.axis, el("span", {}, "now")), view.more);
      views.gpus.set(gpu.id, view);
      list.append(view.root);
    }
    const shares = [...tables.shares.values()].filter(share => share.uuid === gpu.uuid).length;
    say(view.title, `GPU ${gpu.index} · ${gpu.name}`);
    say(view.note, `${shares} container${shares === 1 ? "" : "s"}${gpu.processes_known ? "" : " · NVML lists no processes"}`);
    measure(view.memory, gpu.memory_used, gpu.memory, `${gpu.memory_used === null ? "?" : bytes(gpu.memory_used)} of ${bytes(gpu.memory)}`);
    measure(view.time, gpu.busy, 100, percent(gpu.busy));
    drawUnlimited(view, gpu);
  }
}

function drawUnlimited(view, gpu) {
  const text = JSON.stringify(gpu.unlimited);
  if (view.unlimited === text) return;
  view.unlimited = text;
  if (!gpu.unlimited_count) return view.more.replaceChildren();
  const row = process => el("li", {}, el("span", {}, process.name), el("span", {}, `PID ${process.pid}`),
    el("span", {}, process.held === null ? "?" : bytes(process.held)), el("span", {}, percent(process.observed)));
  const rest = gpu.unlimited_count - gpu.unlimited.length;
  view.more.replaceChildren(el("div", { class: "unlimited" }, el("h4", {}, "Processes without limits"),
    el("ul", {}, ...gpu.unlimited.map(row), rest > 0 ? el("li", {}, `${rest} more`) : null)));
}

/** Says what happened, how often and why. */
function describe(event) {
  const gpu = event.gpu === null ? "" : ` on GPU ${event.gpu}`;
  const ago = head.now - event.last < 15 ? "now" : `last ${duration(head.now - event.last)} ago`;
  if (event.kind === "held_back") return `waited ${duration(event.count)} for its time limit or turn${gpu}, ${ago}`;
  if (event.kind === "refused") return `${event.count} request${event.count === 1 ? "" : "s"} beyond its memory limit${gpu}, ${ago}`;
  return `${KINDS[event.kind][1]}${event.count > 1 ? `, ${event.count} times` : ""}, ${ago}`;
}

function drawEvents() {
  const sections = Object.entries(GROUPS).map(([group, title]) => {
    const all = [...tables.events.values()].filter(event => KINDS[event.kind][0] === group && (group !== "held" || event.count > 0));
    all.sort((a, b) => group === "held" ? b.count - a.count : b.last - a.last);
    const items = all.slice(0, 4).map(event => el("li", {}, el("b", {}, event.name), el("p", {}, describe(event))));
    if (all.length > 4) items.push(el("li", {}, el("p", {}, `${all.length - 4} more`)));
    return el("section", {}, el("h3", {}, title), items.length ? el("ul", {}, ...items) : el("p", { class: "note" }, "none"));
  });
  const next = el("div", {}, ...sections);
  if (next.innerHTML !== by("events").innerHTML) by("events").replaceChildren(...sections);
}

const ORDERS = {
  memory: (a, b) => (b.memory ?? 0) - (a.memory ?? 0), time: (a, b) => (b.time ?? 0) - (a.time ?? 0), waits: (a, b) => (b.waits ?? 0) - (a.waits ?? 0),
  refused: (a, b) => (b.refused ?? 0) - (a.refused ?? 0), name: () => 0, age: (a, b) => b.created - a.created,
};

function drawContainers() {
  const list = by("containers"), text = by("filter").value.toLowerCase();
  const all = [...tables.shares.values()].filter(share => share.name.toLowerCase().includes(text) || share.container_id.startsWith(text));
  const order = ORDERS[by("sort").value];
  all.sort((a, b) => order(a, b) || (a.name < b.name ? -1 : a.name > b.name ? 1 : a.id - b.id));
  const top = all.slice(0, wanted), ids = new Set(top.map(share => share.id));
  // Rows do not move below the keyboard's focus.
  const isFocused = list.contains(document.activeElement);
  for (const [id, view] of views.shares) if (!ids.has(id) && !(isFocused && tables.shares.has(id))) (view.root.remove(), views.shares.delete(id));
  top.forEach((share, nth) => {
    let view = views.shares.get(share.id);
    if (!view) views.shares.set(share.id, view = shareView(share));
    if (!view.root.isConnected || (!isFocused && list.children[nth] !== view.root)) list.insertBefore(view.root, list.children[nth] ?? null);
    drawShare(view, share);
  });
  say(by("shown"), all.length > top.length ? `${top.length} of ${all.length}` : "");
  by("more").hidden = all.length <= top.length;
  say(by("more"), `Show ${Math.min(PAGE, all.length - top.length)} more`);
  by("none").hidden = all.length > 0;
  say(by("none"), text ? "no container has this name" : "no container with limits runs on this machine");
}

function shareView(share) {
  const view = { memory: figure("memory", "Memory"), time: figure("time", "GPU time"), button: el("button", { type: "button", "aria-expanded": "false" }),
    note: el("span", { class: "note" }), badges: el("span"), facts: el("div", { class: "facts" }), detail: el("div", { class: "detail", id: `detail-${share.id}`, hidden: "" }) };
  view.both = el("div", { class: "pair" });
  view.list = el("dl");
  view.axis = el("span");
  view.detail.append(view.both, el("div", { class: "axis" }, view.axis, el("span", {}, "now")), view.list);
  view.grid = el("div", { class: "share" }, el("div", { class: "name" }, view.button, " ", view.badges, el("br"), view.note), view.memory.root, view.time.root, view.facts);
  view.button.setAttribute("aria-controls", view.detail.id);
  view.button.addEventListener("click", () => toggle(view, share.id));
  view.root = el("li", {}, view.grid, view.detail);
  return view;
}

/** Opens or closes a row. The charts of an open one are large, with all points. */
function toggle(view, id) {
  const isOpen = !open.has(id);
  isOpen ? open.add(id) : open.delete(id);
  view.button.setAttribute("aria-expanded", `${isOpen}`);
  view.detail.hidden = !isOpen;
  if (isOpen) view.both.append(view.memory.root, view.time.root);
  else view.facts.before(view.memory.root, view.time.root);
  drawShare(view, tables.shares.get(id));
  completeHistories();
}

function drawShare(view, share) {
  const text = JSON.stringify(share) + open.has(share.id) + Math.floor(head.now / 60);
  if (view.drawn === text) return;
  view.drawn = text;
  say(view.button, share.name);
  say(view.note, `${share.gpu === null ? share.uuid ?? "no GPU known" : `GPU ${share.gpu}`} · ${duration(head.now - share.created)} old`);
  const badges = share.violations.map(kind => el("span", { class: "badge" }, KINDS[kind][1]));
  if (share.damaged) badges.push(el("span", { class: "badge" }, "account damaged"));
  view.badges.replaceChildren(...badges);
  if (share.memory === undefined) return say(view.facts, share.damaged ?? "");
  const total = share.memory_limit ?? gpuOf(share)?.memory ?? 0;
  measure(view.memory, share.memory, total, `${bytes(share.memory)} of ${share.memory_limit === null ? "no limit" : bytes(share.memory_limit)}`);
  const limit = share.time_limit === null ? "no limit" : `${Math.max(share.time_limit, share.lent)}%`;
  measure(view.time, share.time, Math.max(share.time_limit ?? 100, share.lent), `${percent(share.time)} of ${limit}`);
  const facts = [];
  if (share.waits) facts.push(`waits ${percent(share.waits)}`);
  facts.push(`${share.processes} process${share.processes === 1 ? "" : "es"}`);
  const refused = share.refused ? [el("span", { class: "warn" }, `refused ${share.refused}`), " · "] : [];
  view.facts.replaceChildren(...refused, facts.join(" · "));
  if (open.has(share.id)) drawDetail(view, share);
}

const moves = figures => `${figures.count}, ${bytes(figures.bytes)} in ${(figures.took_ns / 1e9).toFixed(1)} s`;

function drawDetail(view, share) {
  const rows = [
    ["Container ID", share.container_id], ["Priority", `${share.priority}`], ["Limits changed", `${share.changes} times`],
    ["Memory by its account", bytes(share.charged)], ["Memory by NVML", share.held === null ? "?" : bytes(share.held)], ["Spilled to the host", bytes(share.spilled)], ["Moved to the host", bytes(share.moved_out)],
    ["Moves to the host", moves(share.moves_out)], ["Moves back", moves(share.moves_in)],
    ["Time while others are idle", share.time_soft === null ? "as the limit" : `up to ${share.time_soft}%`], ["Launches held back", percent(share.waits)],
    ["Refused requests", share.first_refusal === null ? `${share.refused}` : `${share.refused}, first ${duration(head.now - share.first_refusal)} ago`],
    ["Limited by", share.is_mps ? "MPS" : "vgpu"],
  ];
  if (share.damaged) rows.push(["Damaged", share.damaged]);
  view.list.replaceChildren(...rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

by("filter").addEventListener("input", () => (wanted = PAGE, draw(), completeHistories()));
by("sort").addEventListener("change", () => (draw(), completeHistories()));
by("more").addEventListener("click", () => (wanted += PAGE, draw(), completeHistories()));
by("login").addEventListener("submit", event => {
  event.preventDefault();
  token = by("token").value.trim();
  sessionStorage.setItem("token", token);
  banner("");
  refresh();
});
document.addEventListener("visibilitychange", refresh);
refresh();
