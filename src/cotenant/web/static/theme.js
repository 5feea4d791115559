// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
// Applies the chosen colours before the page is painted. Without a choice, those of the system are used.
"use strict";
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("cotenant-theme"); } catch { /* storage may be forbidden */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
