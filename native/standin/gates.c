// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// What runs before and after each function of both libraries: faults on demand, counting, the log of functions that are
// not implemented, and what a test wants to happen right after a call.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "entries.h"

#define RULES 64

bool si_gated;

static const char *after_name;
static void (*_Atomic after)(void);

// What is to happen to one function: counted, and from some call to another answered by `answer`.
static struct rule {
    char name[96];
    int answer;
    uint64_t from, to;
    _Atomic uint64_t calls;
} rules[RULES];
static int rule_count;

static struct rule *rule_of(const char *name) {
    for (int i = 0; i < rule_count; i++)
        if (!strcmp(rules[i].name, name)) return &rules[i];
    return NULL;
}

static struct rule *add_rule(const char *name) {
    struct rule *known = rule_of(name);
    if (known || rule_count == RULES) return known;
    struct rule *made = &rules[rule_count++];
    snprintf(made->name, sizeof made->name, "%s", name);
    return made;
}

// "name=answer@call", "name=answer@first-last" or just "name"
static void read_rule(char *text) {
    char *answer = strchr(text, '=');
    if (answer) *answer++ = 0;
    char *from = answer ? strchr(answer, '@') : NULL;
    struct rule *rule = add_rule(text);
    if (!rule || !answer) return;
    rule->answer = atoi(answer);
    char *rest = NULL;
    rule->from = from ? strtoull(from + 1, &rest, 0) : 1;
    rule->to = rest && *rest == '-' ? strtoull(rest + 1, NULL, 0) : UINT64_MAX;
}

static void read_rules(const char *variable) {
    const char *text = getenv(variable);
    char *copy = text ? strdup(text) : NULL, *rest = copy;
    for (char *word; copy && (word = strsep(&rest, ","));)
        if (*word) read_rule(word);
    free(copy);
}

__attribute__((constructor)) static void begin(void) {
    read_rules("STANDIN_FAULTS");
    read_rules("STANDIN_COUNT");
    si_gated = rule_count > 0;
}

int si_gate(const char *name) {
    struct rule *rule = rule_of(name);
    if (!rule) return 0;
    uint64_t call = ++rule->calls;
    return rule->answer && call >= rule->from && call <= rule->to ? rule->answer : 0;
}

void si_set_after(const char *name, void (*function)(void)) {
    after_name = name;
    after = function;
    si_gated = true;
}

void si_after(const char *name) {
    void (*function)(void) = after;
    if (function && !strcmp(after_name, name) && atomic_compare_exchange_strong(&after, &function, NULL)) function();
}

uint64_t si_calls(const char *name) {
    struct rule *rule = rule_of(name);
    return rule ? atomic_load(&rule->calls) : 0;
}

void si_log(const char *name) {
    const char *path = getenv("STANDIN_LOG");
    int file = path && *path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
    if (file >= 0) {
        dprintf(file, "%s\n", name);
        close(file);
    }
}
