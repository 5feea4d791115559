// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// MIG: the instances of partitioned cards. Each is a device behind the cards, with memory and an engine of its own.
// An instance that NVML makes has a place among the card's slices of memory, and fits beside the others. One that a test
// asks for by its profile has the last place that is free, and exists even if there is none.

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

// As `nvidia-smi mig -lgipp` lists them for an A100 and an A30.
static const struct si_shape of_seven[] = {
    {0, 19, 1, 1, 0x7f, false}, {7, 20, 1, 1, 0x7f, true}, {9, 15, 1, 2, 0x55, false}, {1, 14, 2, 2, 0x15, false},
    {2, 9, 3, 4, 0x11, false},  {3, 5, 4, 4, 0x01, false}, {4, 0, 7, 8, 0x01, false},
};
static const struct si_shape of_four[] = {{0, 14, 1, 1, 0xf, false}, {1, 5, 2, 2, 0x5, false}, {3, 0, 4, 4, 1, false}};

const struct si_shape *si_shape(const struct si_state *state, int card, unsigned which) {
    bool four = has_four_slices(state, card);
    unsigned count = four ? sizeof of_four / sizeof *of_four : sizeof of_seven / sizeof *of_seven;
    return which < count ? &(four ? of_four : of_seven)[which] : NULL;
}

void si_profile_name(const struct si_state *state, int card, const struct si_shape *shape, char name[SI_PROFILE]) {
    uint64_t whole = state->set.memory[card], gib = UINT64_C(1) << 30;
    unsigned parts = has_four_slices(state, card) ? 4 : 8, size = (unsigned)((whole + gib - 1) / gib);
    unsigned gigabytes = (2 * size * shape->size + parts) / (2 * parts);
    snprintf(name, SI_PROFILE, "%ug.%ugb%s", shape->slices, gigabytes, shape->media ? "+me" : "");
}

bool si_fits(const struct si_state *state, int card, const struct si_shape *shape, unsigned start) {
    unsigned taken = 0, compute = shape->slices, own = ((1u << shape->size) - 1) << start;
    for (int device = (int)state->set.devices; device < SI_DEVICES; device++) {
        const struct si_instance *one = &state->instance[device];
        if (!one->group || one->card != card) continue;
        taken |= ((1u << one->size) - 1) << one->start;
        compute += one->slices;
        if (shape->media && strstr(one->profile, "+me")) return false;
    }
    return shape->starts >> start & 1 && !(taken & own) && compute <= (has_four_slices(state, card) ? 4u : 7u);
}

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
int si_add_group(struct si_state *state, int card, const char *profile, unsigned start, unsigned size) {
    unsigned slices = 0, gigabytes = 0;
    if (sscanf(profile, "%ug.%ugb", &slices, &gigabytes) != 2 || !slices) return -1;
    int device = (int)state->set.devices;
    while (device < SI_DEVICES && (state->instance[device].group || (state->level[device].word & SI_BYTES))) device++;
    if (device == SI_DEVICES) return -1;
    uint64_t parts = has_four_slices(state, card) ? 4 : 8, whole = state->set.memory[card];
    uint64_t taken = (((uint64_t)gigabytes << 30) * parts + whole / 2) / whole;
    struct si_instance *made = &state->instance[device];
    *made = (struct si_instance){.card = card, .slices = slices, .start = start, .size = size};
    snprintf(made->profile, sizeof made->profile, "%s", profile);
    state->set.memory[device] = whole * (taken < 1 ? 1 : taken > parts ? parts : taken) / parts;
    char of_card[SI_NAME];
    memcpy(of_card, state->set.name[card], sizeof of_card);
    snprintf(state->set.name[device], SI_NAME, "%.70s MIG %.20s", of_card, profile);
    state->set.numa[device] = state->set.numa[card];
    if ((uint32_t)device >= state->all) state->all = (uint32_t)device + 1;
    made->group = ++state->serials;
    return device;
}

static unsigned size_of(const struct si_state *state, int card, const char *profile, unsigned *start) {
    char name[SI_PROFILE];
    const struct si_shape *shape;
    for (unsigned which = 0; (shape = si_shape(state, card, which)); which++) {
        si_profile_name(state, card, shape, name);
        for (int place = 7; !strcmp(name, profile) && place >= 0; place--)
            if (si_fits(state, card, shape, (unsigned)place)) return *start = (unsigned)place, shape->size;
    }
    return *start = 0;
}

static void add_instance(struct si_state *state, int card, const char *profile) {
    int device = si_add_group(state, card, profile, 0, 0);
    if (device >= 0) state->instance[device].serial = state->instance[device].group;
}

// Gives the instances of a card that were made after another, and have as many slices (0: any), a place; whether each
// has one.
static bool place_instances(struct si_state *state, int card, uint32_t after, unsigned slices) {
    bool all = true;
    for (int device = (int)state->set.devices; device < SI_DEVICES; device++) {
        struct si_instance *one = &state->instance[device];
        uint32_t group = one->group;
        if (group <= after || one->card != card || (slices && one->slices != slices)) continue;
        one->group = 0; // it is not beside itself
        one->size = size_of(state, card, one->profile, &one->start);
        one->group = group;
        all = all && one->size;
    }
    return all;
}

static void forget_places(struct si_state *state, int card, uint32_t after) {
    for (int device = (int)state->set.devices; device < SI_DEVICES; device++)
        if (state->instance[device].group > after && state->instance[device].card == card)
            state->instance[device].size = 0;
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
        if (state->instance[device].card == card && !kept[device])
            state->instance[device].group = state->instance[device].serial = 0;
    uint32_t before = state->serials;
    for (int i = 0; i < count; i++) add_instance(state, card, fresh[i]);
    if (!place_instances(state, card, before, 0)) {
        forget_places(state, card, before);
        // Larger ones first: there are fewer places for them.
        for (unsigned slices = 7; slices; slices--) place_instances(state, card, before, slices);
    }
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
