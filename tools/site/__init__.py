# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The site of the documentation, which MkDocs builds: what it needs beyond mkdocs.yml."""
