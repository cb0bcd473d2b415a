// moe-appliance: keeps the page live, copies commands, acts without leaving it, and logs in from #token=...
"use strict";

const POLL_MS = 1000;
const ANSWER_MS = 5000;
const SAID_MS = 30000;
const HOLD_MS = 5000;
document.documentElement.classList.add("js");

// An address printed by the demo carries its token in the fragment, which browsers never send and no log sees.
function takeToken() {
  if (!location.hash.startsWith("#token=")) return;
  const token = location.hash.slice("#token=".length);
  history.replaceState(null, "", location.pathname);
  const form = document.getElementById("login");
  if (!form || document.querySelector(".login-error")) return;
  form.elements.token.value = token;
  form.submit();
}

// Makes `old` look like `fresh` and touches nothing that is the same: scroll, focus, selection and open questions stay.
function morph(old, fresh) {
  for (const { name } of [...old.attributes]) if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  morphChildren(old, fresh);
}

// What tells an element from its neighbours; "" = nothing does.
function nameOf(node) {
  if (node.nodeType !== Node.ELEMENT_NODE) return "";
  return node.id || node.dataset.key || node.getAttribute("aria-labelledby") || "";
}

function alike(a, b) {
  return a.nodeName === b.nodeName && nameOf(a) === nameOf(b);
}

// Never removes an element that has a name and is still wanted further on: it may hold the focus or be open.
function morphChildren(old, fresh) {
  const wantedNames = new Set([...fresh.childNodes].map(nameOf).filter(Boolean));
  let at = old.firstChild;
  const drop = (until) => {
    while (at !== until) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
  };
  for (const wanted of [...fresh.childNodes]) {
    let found = at;
    while (found && !alike(found, wanted) && !wantedNames.has(nameOf(found))) found = found.nextSibling;
    if (!found || !alike(found, wanted)) {
      old.insertBefore(document.importNode(wanted, true), at);
      continue;
    }
    drop(found);
    at = found.nextSibling;
    if (found.nodeType === Node.ELEMENT_NODE) morph(found, wanted);
    else if (found.data !== wanted.data) found.data = wanted.data;
  }
  drop(null);
}

function hhmmss(date) {
  return date.toLocaleTimeString("en-GB");
}

function follow(live) {
  const stale = document.getElementById("stale");
  const clock = document.getElementById("clock");
  const told = document.getElementById("told");
  let kind = live.querySelector("[data-kind]").dataset.kind;
  let last = new Date();
  const every = Number(live.dataset.every) || POLL_MS;
  let timer = 0;
  let asking = null;
  let pressedAt = -HOLD_MS;

  function show(html) {
    if (performance.now() - pressedAt < HOLD_MS) return; // a button that moves between press and release is not clicked
    const log = document.getElementById("log");
    const atEnd = log && log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
    const fresh = new DOMParser().parseFromString(`<main>${html}</main>`, "text/html").querySelector("main");
    morphChildren(live, fresh);
    const now = document.getElementById("log");
    if (now && (atEnd || !log)) now.scrollTop = now.scrollHeight;
    const title = live.querySelector("[data-title]");
    const sentence = live.querySelector("[data-kind]");
    if (sentence.dataset.kind !== kind) {
      kind = sentence.dataset.kind; // figures in it change each second: that would be read aloud for ever
      told.textContent = sentence.textContent;
    }
    if (title) document.title = `${title.dataset.title} · moe-appliance`;
  }

  // One question at a time, so that answers come in their order.
  function ask() {
    if (!asking && !document.hidden) asking = answered();
    return asking;
  }

  async function again() {
    await asking;
    await ask();
  }

  async function answered() {
    try {
      const answer = await fetch(live.dataset.live, { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
      if (answer.status === 401 || answer.status === 403) {
        location.replace(live.dataset.login);
        return;
      }
      if (!answer.ok) throw new Error(String(answer.status));
      show(await answer.text());
      last = new Date();
      stale.hidden = true;
      document.body.classList.remove("is-stale");
      clock.hidden = false;
      clock.textContent = `live, ${hhmmss(last)}`;
    } catch {
      const said = `No answer from the gateway since ${hhmmss(last)}. What you see below is from then.`;
      if (stale.textContent !== said) stale.textContent = said;
      stale.hidden = false;
      clock.textContent = `last seen ${hhmmss(last)}`;
      document.body.classList.add("is-stale");
    } finally {
      asking = null;
    }
    clearTimeout(timer);
    timer = setTimeout(ask, every);
  }

  document.addEventListener("visibilitychange", ask);
  document.addEventListener("pointerdown", () => (pressedAt = performance.now()), true);
  for (const end of ["pointerup", "pointercancel"]) {
    document.addEventListener(end, () => setTimeout(() => (pressedAt = -HOLD_MS)), true); // after the click
  }
  const log = document.getElementById("log");
  if (log) log.scrollTop = log.scrollHeight;
  ask();
  return again;
}

function forget(said, text) {
  if (said.textContent === text && document.activeElement !== said) said.textContent = "";
}

// An action is asked for with its form as ever; the page stays where it is, and says what came of it.
async function act(form, ask) {
  const said = document.getElementById("said");
  const asked = form.closest("[popover]");
  const opener = document.querySelector(`[popovertarget="${CSS.escape(asked.id)}"]:not([popovertargetaction])`);
  const body = new URLSearchParams(new FormData(form));
  asked.hidePopover?.();
  try {
    const headers = { accept: "application/json" };
    const answer = await fetch(form.action, { method: "POST", body, headers, signal: AbortSignal.timeout(2 * ANSWER_MS) });
    if (answer.status === 401) {
      location.replace("/admin");
      return;
    }
    const plain = !answer.headers.get("content-type").startsWith("application/json");
    const done = plain ? { ok: false, said: await answer.text() } : await answer.json();
    said.textContent = done.said;
    said.classList.toggle("not-done", !done.ok);
    if (done.ok) setTimeout(() => forget(said, done.said), SAID_MS);
  } catch {
    said.textContent = "No answer from the gateway. The events below say whether it was done.";
    said.classList.add("not-done");
  }
  await ask();
  if (opener && opener.isConnected) opener.focus();
  else said.focus();
}

// The clipboard needs https or localhost; elsewhere the text is selected, so that Ctrl-C takes it.
async function copy(button) {
  const code = button.previousElementSibling;
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(code);
    button.textContent = "Ctrl-C";
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copy(button);
});
window.addEventListener("hashchange", takeToken);
const live = document.getElementById("live");
const ask = live ? follow(live) : null;
document.addEventListener("submit", (event) => {
  if (!ask || !event.target.matches("[data-act]")) return;
  event.preventDefault();
  act(event.target, ask);
});
takeToken();
