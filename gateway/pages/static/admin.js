// moe-appliance: keeps the page live, copies commands, acts without leaving it, and logs in from #token=...
"use strict";

const POLL_MS = 1000;
const ANSWER_MS = 5000;
const SAID_MS = 30000;
document.documentElement.classList.add("js");

// An address printed by the demo carries its token in the fragment, which browsers never send and no log sees.
function takeToken() {
  if (!location.hash.startsWith("#token=")) return;
  const token = decodeURIComponent(location.hash.slice("#token=".length));
  history.replaceState(null, "", location.pathname);
  const form = document.getElementById("login");
  if (!form || document.querySelector(".login-error")) return;
  form.elements.token.value = token;
  form.submit();
}

// Makes `old` look like `fresh` and touches nothing that is the same: scroll, focus and selection stay.
function morph(old, fresh) {
  for (const { name } of [...old.attributes]) if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  morphChildren(old, fresh);
}

function alike(a, b) {
  if (a.nodeType !== b.nodeType || a.nodeName !== b.nodeName) return false;
  return a.nodeType !== Node.ELEMENT_NODE || (a.getAttribute("aria-labelledby") === b.getAttribute("aria-labelledby") && a.id === b.id);
}

function morphChildren(old, fresh) {
  let at = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    let found = at;
    while (found && !alike(found, wanted)) found = found.nextSibling;
    if (!found) {
      old.insertBefore(document.importNode(wanted, true), at);
      continue;
    }
    while (at !== found) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
    at = found.nextSibling;
    if (found.nodeType === Node.ELEMENT_NODE) morph(found, wanted);
    else if (found.data !== wanted.data) found.data = wanted.data;
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

function hhmmss(date) {
  return date.toLocaleTimeString("en-GB");
}

function follow(live) {
  const stale = document.getElementById("stale");
  const clock = document.getElementById("clock");
  let last = new Date();
  const every = Number(live.dataset.every) || POLL_MS;
  let timer = 0;
  let asking = false;

  function show(html) {
    const log = document.getElementById("log");
    const atEnd = log && log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
    const fresh = new DOMParser().parseFromString(`<main>${html}</main>`, "text/html").querySelector("main");
    morphChildren(live, fresh);
    const now = document.getElementById("log");
    if (now && (atEnd || !log)) now.scrollTop = now.scrollHeight;
    const title = live.querySelector("[data-title]");
    if (title) document.title = `${title.dataset.title} · moe-appliance`;
  }

  async function ask() {
    if (asking || document.hidden) return;
    asking = true;
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
      asking = false;
    }
    clearTimeout(timer);
    timer = setTimeout(ask, every);
  }

  document.addEventListener("visibilitychange", ask);
  const log = document.getElementById("log");
  if (log) log.scrollTop = log.scrollHeight;
  ask();
  return ask;
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
  asked.hidePopover();
  try {
    const headers = { accept: "application/json" };
    const answer = await fetch(form.action, { method: "POST", body, headers, signal: AbortSignal.timeout(2 * ANSWER_MS) });
    if (answer.status === 401) {
      location.replace("/admin");
      return;
    }
    const done = await answer.json();
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
