// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Parses the text of a limits file and of a list of processes (limits.h defines them). It is apart from limits.c, so that a fuzzer can call it
// alone.

#include <stdbool.h>
#include <string.h>

#include "limits.h"

// A part of the text.
struct words {
    const char *at;
    const char *end;
};

// Removes and returns what is in front of the mark, and removes the mark; all of it if there is no mark.
static struct words take(struct words *rest, char mark) {
    struct words taken = *rest;
    const char *found = rest->at < rest->end ? memchr(rest->at, mark, (size_t)(rest->end - rest->at)) : NULL;
    taken.end = found ? found : rest->end;
    rest->at = found ? found + 1 : rest->end;
    return taken;
}

static size_t length_of(struct words words) {
    return (size_t)(words.end - words.at);
}

static bool is(struct words words, const char *text) {
    return length_of(words) == strlen(text) && memcmp(words.at, text, length_of(words)) == 0;
}

static bool read_number(struct words words, uint64_t most, uint64_t *number) {
    uint64_t read = 0;
    if (words.at == words.end) return false;
    for (; words.at < words.end; words.at++) {
        if (*words.at < '0' || *words.at > '9') return false;
        if (__builtin_mul_overflow(read, 10, &read)) return false;
        if (__builtin_add_overflow(read, (uint64_t)(*words.at - '0'), &read)) return false;
    }
    *number = read;
    return read <= most;
}

static bool copy(struct words words, char *to, size_t room) {
    if (words.at == words.end || length_of(words) >= room) return false;
    memcpy(to, words.at, length_of(words));
    to[length_of(words)] = 0;
    return true;
}

// One `name=value` of a gpu or default line.
static bool read_setting(struct words setting, struct ct_gpu_limits *gpu) {
    struct words name = take(&setting, '=');
    uint64_t number = 0;
    if (is(name, "memory") && is(setting, "none")) {
        gpu->memory = CT_UNLIMITED;
        return true;
    }
    if (is(name, "memory")) return read_number(setting, CT_UNLIMITED - 1, &gpu->memory);
    if (is(name, "host")) return read_number(setting, CT_UNLIMITED - 1, &gpu->host);
    if (is(name, "request")) return read_number(setting, CT_UNLIMITED - 1, &gpu->request);
    if (is(name, "most")) return read_number(setting, CT_UNLIMITED - 1, &gpu->most);
    if (is(name, "compute")) {
        if (!read_number(setting, CT_WHOLE, &number) || number == 0) return false;
        gpu->compute = (uint32_t)number;
    } else if (is(name, "paused")) {
        if (!read_number(setting, 1, &number)) return false;
        gpu->paused = (uint32_t)number;
    }
    return true;
}

static bool read_settings(struct words line, struct ct_gpu_limits *gpu) {
    while (line.at < line.end) {
        if (!read_setting(take(&line, ' '), gpu)) return false;
    }
    return true;
}

static const struct ct_gpu_limits unlimited = {.memory = CT_UNLIMITED, .compute = CT_WHOLE};

static bool read_gpu(struct words line, struct ct_limits *limits) {
    if (limits->gpus == CT_DEVICES) return false;
    struct ct_gpu_limits *gpu = &limits->gpu[limits->gpus];
    *gpu = unlimited;
    if (!copy(take(&line, ' '), gpu->uuid, sizeof gpu->uuid)) return false;
    for (uint32_t i = 0; i < limits->gpus; i++) {
        if (strcmp(limits->gpu[i].uuid, gpu->uuid) == 0) return false;
    }
    limits->gpus++;
    return read_settings(line, gpu);
}

static bool read_choice(struct words line, const char *const *choices, int *chosen) {
    for (int i = 0; choices[i]; i++) {
        if (!is(line, choices[i])) continue;
        *chosen = i;
        return true;
    }
    return false;
}

static bool read_path(struct words line, char to[CT_PATH_BYTES]) {
    return line.at < line.end && *line.at == '/' && copy(line, to, CT_PATH_BYTES);
}

static bool read_process(struct words line, void *into) {
    struct ct_process_list *list = into;
    uint64_t host, pid, space;
    if (!is(take(&line, ' '), "process")) return true;
    struct words first = take(&line, ' '), second = take(&line, ' '), third = take(&line, ' ');
    if (!read_number(first, UINT32_MAX, &host) || !read_number(second, UINT32_MAX, &pid)) return false;
    if (!read_number(third, UINT64_MAX, &space)) return false;
    if (list->count == CT_PROCESSES) return true;
    list->process[list->count++] = (struct ct_process){(uint32_t)host, (uint32_t)pid, space};
    return true;
}

static bool read_limit(struct words line, void *into) {
    struct ct_limits *limits = into;
    static const char *const policies[] = {"conserving", "always", "never", NULL};
    static const char *const overheads[] = {"counted", "ignored", NULL};
    static const char *const priorities[] = {"high", "low", NULL};
    int chosen = 0;
    struct words first = take(&line, ' ');
    if (is(first, "gpu")) return read_gpu(line, limits);
    if (is(first, "default")) {
        limits->fallback = unlimited;
        return read_settings(line, &limits->fallback);
    }
    if (is(first, "region")) return read_path(line, limits->region);
    if (is(first, "processes")) return read_path(line, limits->processes);
    if (is(first, "grants")) return read_path(line, limits->grants);
    if (is(first, "policy")) {
        bool known = read_choice(line, policies, &chosen);
        limits->policy = (enum ct_policy)chosen;
        return known;
    }
    if (is(first, "overhead")) {
        bool known = read_choice(line, overheads, &chosen);
        limits->ignores_overhead = chosen == 1;
        return known;
    }
    if (is(first, "priority")) {
        bool known = read_choice(line, priorities, &chosen);
        limits->priority = (enum ct_priority)chosen;
        return known;
    }
    return true;
}

// Reads a file whose first line is a name and a version, and whose last line is `end`.
static enum ct_parsed parse(const char *text, size_t length, const char *name, uint64_t expected,
                            bool (*read_line)(struct words, void *), void *into) {
    struct words rest = {text, text + length};
    if (length == 0 || length > CT_LIMITS_BYTES || memchr(text, 0, length)) return CT_PARSE_BAD;
    struct words headline = take(&rest, '\n'), word = headline;
    uint64_t version = 0;
    bool headed = is(take(&word, ' '), name) && read_number(word, UINT64_MAX, &version);
    if (!headed || rest.at == headline.end) return CT_PARSE_BAD;
    if (version != expected) return CT_PARSE_VERSION;
    while (memchr(rest.at, '\n', length_of(rest))) { // text behind the last newline is a truncated line
        struct words line = take(&rest, '\n');
        if (is(line, "end")) return CT_PARSED;
        if (!read_line(line, into)) return CT_PARSE_BAD;
    }
    return CT_PARSE_BAD;
}

enum ct_parsed ct_parse_limits(const char *text, size_t length, struct ct_limits *limits) {
    struct ct_limits read = {.fallback = unlimited};
    enum ct_parsed parsed = parse(text, length, "cotenant-limits", CT_LIMITS_VERSION, read_limit, &read);
    if (parsed == CT_PARSED) *limits = read;
    return parsed;
}

enum ct_parsed ct_parse_processes(const char *text, size_t length, struct ct_process_list *list) {
    struct ct_process_list read = {0};
    enum ct_parsed parsed = parse(text, length, "cotenant-processes", CT_LIST_VERSION, read_process, &read);
    if (parsed == CT_PARSED) *list = read;
    return parsed;
}
