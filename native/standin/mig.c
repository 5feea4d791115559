// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// MIG: the instances of partitioned cards. Each is a device behind the cards, with memory and an engine of its own.
// Where the driver would place an instance on the card, and whether all of them fit, is not checked here.

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared.h"

#define SEPARATOR "/"

// An A30 has four slices of compute and of memory, all others seven of compute and eight of memory.
static bool has_four_slices(const struct si_state *state, int card) {
    return strstr(state->set.name[card], "A30") != NULL;
}

unsigned si_compute_slices(int card) { return has_four_slices(si_state(), card) ? 4 : 7; }

bool si_is_instance(int device) {
    return device >= (int)si_state()->set.devices && device < SI_DEVICES && si_state()->instance[device].serial != 0;
}

int si_card_of(int device) { return si_is_instance(device) ? si_state()->instance[device].card : device; }

bool si_is_partitioned(int card) { return atomic_load(&si_state()->partitioned[card]) != 0; }

int si_instances(int card, int found[SI_DEVICES]) {
    int count = 0;
    for (int device = 0; device < SI_DEVICES; device++) {
        bool is_its = si_is_instance(device) && si_card_of(device) == card;
        if (is_its && si_sees(device)) found[count++] = device;
    }
    return count;
}

// An instance such as 2g.10gb has two slices of compute, and as many slices of memory as 10 GB are of the card.
static void add_instance(struct si_state *state, int card, const char *profile) {
    unsigned slices = 0, gigabytes = 0;
    if (sscanf(profile, "%ug.%ugb", &slices, &gigabytes) != 2 || !slices) return;
    int device = (int)state->set.devices;
    while (device < SI_DEVICES && (state->instance[device].serial || (state->level[device].word & SI_BYTES))) device++;
    if (device == SI_DEVICES) return;
    uint64_t parts = has_four_slices(state, card) ? 4 : 8, whole = state->set.memory[card];
    uint64_t taken = (((uint64_t)gigabytes << 30) * parts + whole / 2) / whole;
    struct si_instance *made = &state->instance[device];
    *made = (struct si_instance){.card = card, .slices = slices};
    snprintf(made->profile, sizeof made->profile, "%s", profile);
    state->set.memory[device] = whole * (taken < 1 ? 1 : taken > parts ? parts : taken) / parts;
    snprintf(state->set.name[device], SI_NAME, "%.70s MIG %.20s", state->set.name[card], profile);
    state->set.numa[device] = state->set.numa[card];
    if ((uint32_t)device >= state->all) state->all = (uint32_t)device + 1;
    made->serial = ++state->serials;
}

void si_partition(struct si_state *state, int card, const char *layout) {
    char words[SI_LAYOUT], *rest = words, *fresh[SI_DEVICES];
    bool kept[SI_DEVICES] = {false};
    int count = 0;
    snprintf(words, sizeof words, "%s", layout ? layout : "");
    for (char *word; (word = strsep(&rest, SEPARATOR));) {
        int device = (int)state->set.devices;
        while (device < SI_DEVICES && (kept[device] || !state->instance[device].serial ||
                                       state->instance[device].card != card ||
                                       strcmp(state->instance[device].profile, word) != 0))
            device++;
        if (device < SI_DEVICES) kept[device] = true;
        else if (*word && count < SI_DEVICES) fresh[count++] = word;
    }
    for (int device = (int)state->set.devices; device < SI_DEVICES; device++)
        if (state->instance[device].card == card && !kept[device]) state->instance[device].serial = 0;
    for (int i = 0; i < count; i++) add_instance(state, card, fresh[i]);
    atomic_store(&state->partitioned[card], layout != NULL);
}

void si_make_instances(struct si_state *state) {
    const char *layouts = getenv("STANDIN_MIG");
    state->all = state->set.devices;
    for (uint32_t card = 0; layouts && *layouts && card < state->set.devices; card++) {
        char layout[SI_LAYOUT];
        size_t length = strcspn(layouts, ",");
        snprintf(layout, sizeof layout, "%.*s", (int)length, layouts);
        if (strcmp(layout, "-") != 0) si_partition(state, (int)card, layout);
        if (layouts[length] == ',') layouts += length + 1; // the last counts for all further cards
    }
}
