// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
// Exchanges the token behind the # of the address for a cookie. Browsers never send that part to a server.
"use strict";
const token = location.hash.slice(1);
if (token) {
  history.replaceState(null, "", location.pathname);
  const form = document.getElementById("enter");
  form.elements.token.value = token;
  form.submit();
}
