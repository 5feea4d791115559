// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
// Live pages: replaces pieces of HTML that the server sends, keeps ages current, and handles keys, search and actions.
"use strict";
(() => {
  const root = document.documentElement;
  const base = root.dataset.base;
  let offset = Number(root.dataset.now) - Date.now() / 1000; // the server's clock counts, not the viewer's

  // Ages

  function age(seconds) {
    const s = Math.max(0, Math.round(seconds));
    if (s < 60) return s + " s";
    if (s < 3600) return Math.floor(s / 60) + " min";
    if (s < 86400) return Math.floor(s / 3600) + " h " + (Math.floor(s / 60) % 60) + " min";
    return Math.floor(s / 86400) + " d " + (Math.floor(s / 3600) % 24) + " h";
  }
  function writeAge(one, now) {
    const text = age(now - Number(one.dataset.at));
    if (one.firstChild && one.firstChild.data === text) return;
    if (!one.title) one.title = one.textContent;
    one.textContent = text;
  }
  let visible = null;
  const seen = new Set();
  if ("IntersectionObserver" in window) {
    visible = new IntersectionObserver((entries) => {
      const now = Date.now() / 1000 + offset;
      for (const entry of entries) {
        if (entry.isIntersecting) { seen.add(entry.target); writeAge(entry.target, now); } else seen.delete(entry.target);
      }
    });
  }
  function watchAges(within) {
    const found = within.querySelectorAll("time[data-at]");
    for (const one of found) {
      if (found.length <= 200 || !visible) writeAge(one, Date.now() / 1000 + offset); // of thousands, only the visible ones
      if (visible) visible.observe(one); else seen.add(one);
    }
  }
  function forgetAges(within) {
    for (const one of within.querySelectorAll("time[data-at]")) { seen.delete(one); if (visible) visible.unobserve(one); }
  }
  setInterval(() => {
    const now = Date.now() / 1000 + offset;
    for (const one of seen) if (one.isConnected) writeAge(one, now); else seen.delete(one);
  }, 1000);
  watchAges(document);

  // Pieces

  const byKey = new Map();
  for (const one of document.querySelectorAll("[data-key]")) byKey.set(one.dataset.key, one);

  function made(html) {
    const template = document.createElement("template");
    template.innerHTML = html;
    return template.content.firstElementChild;
  }
  function replace(key, html) {
    const fresh = made(html);
    const old = byKey.get(key);
    byKey.set(key, fresh);
    if (old && old.isConnected) {
      for (const list of fresh.querySelectorAll("[data-list]")) {
        const kept = old.querySelector('[data-list="' + CSS.escape(list.dataset.list) + '"]');
        if (kept) list.replaceWith(kept);
      }
      const active = document.activeElement;
      const within = active && old.contains(active) ? focusable(old).indexOf(active) : -2;
      forgetAges(old);
      old.replaceWith(fresh);
      if (within === -1) fresh.focus(); else if (within >= 0) (focusable(fresh)[within] || fresh).focus();
    }
    watchAges(fresh);
    return fresh;
  }
  function focusable(within) { return [...within.querySelectorAll("a,button,input,[tabindex]")]; }

  function arrange(name, keys) {
    const list = document.querySelector('[data-list="' + CSS.escape(name) + '"]');
    if (!list) return;
    const wanted = new Set(keys);
    for (const one of [...list.children]) {
      if (!wanted.has(one.dataset.key)) {
        forgetAges(one);
        if (byKey.get(one.dataset.key) === one) byKey.delete(one.dataset.key);
        one.remove();
      }
    }
    let at = list.firstElementChild;
    for (const key of keys) {
      const one = byKey.get(key);
      if (!one) continue;
      if (one === at) at = at.nextElementSibling; else list.insertBefore(one, at);
    }
    const filter = document.querySelector('[data-filters="' + CSS.escape(name) + '"]');
    if (filter && filter.value) search(filter);
  }
  function apply(update) {
    if (update.version !== root.dataset.version) { location.reload(); return; }
    offset = update.now - Date.now() / 1000;
    for (const [key, html] of Object.entries(update.pieces)) replace(key, html);
    // Lists that contain other lists come first.
    for (const [name, keys] of Object.entries(update.lists).reverse()) arrange(name, keys);
    document.dispatchEvent(new CustomEvent("cotenant-update"));
  }

  // The stream

  const status = document.getElementById("status");
  const live = document.body.dataset.live;
  let stream = null, last = document.body.dataset.seen, retry = 0, timer = null;
  function say(word, kind) { status.textContent = word; status.className = "status " + kind; }
  function connect() {
    clearTimeout(timer);
    if (stream) stream.close();
    stream = new EventSource(base + "/live/" + live.split("/").map(encodeURIComponent).join("/") + "?seen=" + encodeURIComponent(last));
    stream.onopen = () => { retry = 0; say("live", "good"); };
    stream.onmessage = (event) => { last = event.lastEventId; apply(JSON.parse(event.data)); };
    stream.onerror = () => {
      stream.close();
      say("reconnecting", "warn");
      retry = Math.min(retry + 1, 5);
      timer = setTimeout(check, 300 * retry);
    };
  }
  async function check() {
    try {
      const answer = await fetch(base + "/session", { cache: "no-store" });
      if (answer.status === 401 || answer.status === 403) { say("signed out", "bad"); return; }
    } catch { /* the server is away: try again */ }
    connect();
  }
  if (live) {
    connect();
    // A browser allows six connections to one server; pages in the background give theirs up.
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) { clearTimeout(timer); if (stream) stream.close(); say("paused", "quiet"); } else connect();
    });
  }

  // Actions

  const ask = document.getElementById("ask");
  function toast(text) {
    const box = document.getElementById("toast");
    box.textContent = text;
    box.classList.add("shown");
    setTimeout(() => box.classList.remove("shown"), 6000);
  }
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-verb]");
    if (!button) return;
    document.getElementById("ask-text").textContent = button.dataset.says;
    ask.returnValue = "no";
    ask.showModal();
    ask.addEventListener("close", () => { if (ask.returnValue === "yes") act(button); }, { once: true });
  });
  async function act(button) {
    button.disabled = true;
    try {
      const answer = await fetch(base + "/act", {
        method: "POST",
        headers: { "X-Cotenant-CSRF": document.querySelector("meta[name=csrf]").content },
        body: new URLSearchParams({ verb: button.dataset.verb, target: button.dataset.target }),
      });
      const json = (answer.headers.get("content-type") || "").startsWith("application/json");
      if (json) { toast((await answer.json()).text); } else {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        toast(page.querySelector("p") ? page.querySelector("p").textContent : "It did not work: " + answer.status);
      }
    } catch (error) { toast("The server does not answer: " + error.message); }
    button.disabled = false;
  }

  // Search

  function search(input) {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const list = document.querySelector('[data-list="' + CSS.escape(input.dataset.filters) + '"]');
    for (const row of list.children) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  }
  document.addEventListener("input", (event) => {
    if (event.target.matches("[data-filters]")) search(event.target);
  });

  // Keys

  function toggleTheme() {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("cotenant-theme", root.dataset.theme); } catch { /* only for this page then */ }
    document.dispatchEvent(new CustomEvent("cotenant-theme"));
  }
  document.getElementById("theme").addEventListener("click", toggleTheme);
  const help = document.getElementById("help");
  document.getElementById("keys").addEventListener("click", () => help.showModal());
  const places = {};
  for (const link of document.querySelectorAll("nav a")) places[link.textContent.trim()[0].toLowerCase()] = link.href;
  let going = 0;
  function step(by) {
    const stops = [...document.querySelectorAll(".tile h3 a, .small, tbody th a")].filter((one) => one.offsetParent);
    const at = stops.indexOf(document.activeElement);
    const next = stops[at < 0 ? (by > 0 ? 0 : stops.length - 1) : Math.min(stops.length - 1, Math.max(0, at + by))];
    if (next) { next.focus(); next.scrollIntoView({ block: "nearest" }); }
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input,textarea,select")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (help.open || ask.open) return;
    const key = event.key;
    if (going && Date.now() - going < 1500 && places[key]) { location.href = places[key]; return; }
    going = 0;
    if (key === "g") going = Date.now();
    else if (key === "j" || key === "k") step(key === "j" ? 1 : -1);
    else if (key === "t") toggleTheme();
    else if (key === "?") help.showModal();
    else if (key === "/") {
      const field = document.querySelector(".search");
      if (field) { event.preventDefault(); field.focus(); }
    }
  });
})();
