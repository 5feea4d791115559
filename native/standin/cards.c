// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// The GPUs: their names, how much memory each has, and which of them this process can see.

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared.h"

// The element of a list at that position, or its last one if the list is too short.
static const char *part_of(const char *list, unsigned position, size_t *length) {
    for (const char *comma; position && (comma = strchr(list, ',')); position--) list = comma + 1;
    *length = strcspn(list, ",");
    return list;
}

// The far ends of one card's NVLinks: 2+2+s0 is two links to card 2 and one to switch 0.
static void read_nvlinks(const char *text, size_t length, int8_t nvlink[SI_NVLINKS]) {
    const char *end = text + length;
    for (int link = 0; link < SI_NVLINKS && text < end; link++) {
        bool to_switch = *text == 's';
        char *after;
        long number = strtol(text + to_switch, &after, 10);
        if (after == text + to_switch) return;
        nvlink[link] = (int8_t)(to_switch ? -(number + 1) : number + 1);
        text = after + 1; // behind the plus
    }
}

void si_make_cards(struct si_settings *set) {
    const char *memory = getenv("STANDIN_MEMORY_MIB"), *names = getenv("STANDIN_NAMES"), *first = getenv("STANDIN_FIRST");
    if (!memory || !*memory) memory = "24576";
    if (!names || !*names) names = "Stand-in GPU";
    const char *numa = getenv("STANDIN_NUMA"), *nvlinks = getenv("STANDIN_NVLINKS");
    const char *capability = getenv("STANDIN_CAPABILITY");
    if (!capability || !*capability) capability = "8.0";
    set->first = first && *first ? (uint32_t)strtoul(first, NULL, 0) : 1;
    for (unsigned card = 0; card < SI_DEVICES; card++) {
        size_t length;
        set->memory[card] = strtoull(part_of(memory, card, &length), NULL, 0) << 20;
        const char *name = part_of(names, card, &length);
        snprintf(set->name[card], SI_NAME, "%.*s", (int)length, name);
        set->numa[card] = numa && *numa ? (int8_t)strtol(part_of(numa, card, &length), NULL, 10) : -1;
        char *minor;
        set->capability[card][0] = (int8_t)strtol(part_of(capability, card, &length), &minor, 10);
        set->capability[card][1] = *minor == '.' ? (int8_t)strtol(minor + 1, NULL, 10) : 0;
        if (nvlinks && *nvlinks) {
            const char *ends = part_of(nvlinks, card, &length);
            read_nvlinks(ends, length, set->nvlink[card]);
        }
    }
}

void si_uuid(int device, char text[SI_UUID]) {
    struct si_state *state = si_state();
    if (si_is_instance(device)) {
        const struct si_instance *one = &state->instance[device];
        unsigned card = state->set.first + (unsigned)one->card;
        snprintf(text, SI_UUID, "MIG-00000000-0000-0000-%04x-%012x", one->serial & 0xFFFF, card);
    } else {
        snprintf(text, SI_UUID, "GPU-00000000-0000-0000-0000-%012x", state->set.first + (unsigned)device);
    }
}

static bool is_named(int device, const char *word, size_t length) {
    char uuid[SI_UUID], index[SI_UUID];
    si_uuid(device, uuid);
    snprintf(index, sizeof index, "%d", device);
    return (strlen(uuid) == length && !strncmp(uuid, word, length)) ||
           (!si_is_instance(device) && strlen(index) == length && !strncmp(index, word, length));
}

// Its own name makes an instance visible, or that of its card.
bool si_sees(int device) {
    const char *named = getenv("STANDIN_VISIBLE");
    if (!named) return true;
    while (*named) {
        size_t length = strcspn(named, ",");
        if (is_named(device, named, length) || is_named(si_card_of(device), named, length)) return true;
        named += length + (named[length] == ',');
    }
    return false;
}

// A card is there if one of its instances is.
int si_present(int cards[SI_DEVICES]) {
    int count = (int)si_state()->set.devices, found = 0, instances[SI_DEVICES];
    for (int card = 0; card < count; card++)
        if (si_sees(card) || si_instances(card, instances)) cards[found++] = card;
    return found;
}
