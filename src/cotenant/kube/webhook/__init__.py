# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What is done to pods at the API server's door: prepared for GPUs, refused with a sentence, kept from forging."""
