// SPDX-FileCopyrightText: 2026 The cotenant authors
// SPDX-License-Identifier: Apache-2.0
//
// Finds symbols in the tables of loaded objects. The loader's dlsym cannot be used to find itself (ours would answer),
// its version differs between C libraries, and it leaves a message for dlerror if a function is missing.

#define _GNU_SOURCE
#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <string.h>

#include "base.h"

// glibc writes addresses over the offsets of a dynamic table; musl, and glibc on some machines, leave it as it is.
static uintptr_t pointer(const struct dl_phdr_info *info, ElfW(Addr) value) {
    return value < info->dlpi_addr ? info->dlpi_addr + value : value;
}

static const ElfW(Dyn) *find_dynamic(const struct dl_phdr_info *info, struct ct_object *object) {
    const ElfW(Dyn) *dynamic = NULL;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t from = info->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_DYNAMIC) dynamic = (const void *)from;
        if (part->p_type != PT_LOAD) continue;
        if (from < object->from) object->from = from;
        if (from + part->p_memsz > object->to) object->to = from + part->p_memsz;
    }
    return dynamic;
}

static bool read_object(const struct dl_phdr_info *info, struct ct_object *object) {
    *object = (struct ct_object){.base = info->dlpi_addr, .from = UINTPTR_MAX, .name = ""};
    ElfW(Xword) name = 0;
    for (const ElfW(Dyn) *entry = find_dynamic(info, object); entry && entry->d_tag != DT_NULL; entry++) {
        const void *there = (const void *)pointer(info, entry->d_un.d_ptr);
        switch (entry->d_tag) {
        case DT_SYMTAB: object->symbols = there; break;
        case DT_STRTAB: object->strings = there; break;
        case DT_GNU_HASH: object->gnu_hash = there; break;
        case DT_HASH: object->hash = there; break;
        case DT_SONAME: name = entry->d_un.d_val; break;
        }
    }
    if (object->strings && name) object->name = object->strings + name;
    return object->symbols && object->strings && (object->gnu_hash || object->hash);
}

static bool defines(const struct ct_object *object, uint32_t index, const char *symbol) {
    const ElfW(Sym) *entry = (const ElfW(Sym) *)object->symbols + index;
    return entry->st_shndx != SHN_UNDEF && entry->st_value != 0 && ELF64_ST_TYPE(entry->st_info) != STT_GNU_IFUNC &&
           ELF64_ST_BIND(entry->st_info) != STB_LOCAL && strcmp(object->strings + entry->st_name, symbol) == 0;
}

static uint32_t find_in_gnu_hash(const struct ct_object *object, const char *symbol) {
    uint32_t hash = 5381;
    for (const unsigned char *at = (const void *)symbol; *at; at++) hash = hash * 33 + *at;
    uint32_t buckets = object->gnu_hash[0], first = object->gnu_hash[1], words = object->gnu_hash[2];
    uint32_t shift = object->gnu_hash[3], bits = 8 * sizeof(ElfW(Addr));
    if (buckets == 0 || words == 0) return 0;
    const ElfW(Addr) *filter = (const void *)(object->gnu_hash + 4);
    ElfW(Addr) word = filter[hash / bits % words];
    if (!(word >> hash % bits & word >> (hash >> shift) % bits & 1)) return 0;
    const uint32_t *bucket = (const void *)(filter + words), *chain = bucket + buckets;
    uint32_t index = bucket[hash % buckets];
    if (index < first) return 0;
    for (;; index++) {
        uint32_t link = chain[index - first];
        if ((link | 1) == (hash | 1) && defines(object, index, symbol)) return index;
        if (link & 1) return 0;
    }
}

static uint32_t find_in_hash(const struct ct_object *object, const char *symbol) {
    uint32_t hash = 0;
    for (const unsigned char *at = (const void *)symbol; *at; at++) {
        hash = (hash << 4) + *at;
        hash = (hash ^ (hash >> 24 & 0xf0)) & 0x0fffffff;
    }
    uint32_t buckets = object->hash[0];
    const uint32_t *bucket = object->hash + 2, *chain = bucket + buckets;
    for (uint32_t index = buckets ? bucket[hash % buckets] : 0; index; index = chain[index]) {
        if (defines(object, index, symbol)) return index;
    }
    return 0;
}

void *ct_find_symbol(const struct ct_object *object, const char *symbol) {
    uint32_t index = object->gnu_hash ? find_in_gnu_hash(object, symbol) : find_in_hash(object, symbol);
    return index ? (void *)(object->base + ((const ElfW(Sym) *)object->symbols)[index].st_value) : NULL;
}

struct search {
    const char *name;    // of the object; "" is this library
    const char *without; // a symbol that it must not define
    const char *symbol;
    uintptr_t behind;    // an address in the object whose successors are searched
    struct ct_object *object;
    void *found;
};

static bool contains(const struct ct_object *object, uintptr_t address) {
    return object->from <= address && address < object->to;
}

static int is_wanted(struct dl_phdr_info *info, size_t size, void *with) {
    (void)size;
    struct search *search = with;
    if (!read_object(info, search->object)) return 0;
    const char *name = search->object->name;
    if (*search->name ? strcmp(name, search->name) != 0 : !contains(search->object, (uintptr_t)&is_wanted)) return 0;
    return !(search->without && ct_find_symbol(search->object, search->without));
}

bool ct_find_object(const char *name, const char *without, struct ct_object *found) {
    struct search search = {.name = name, .without = without, .object = found};
    return ct_for_each_object(is_wanted, &search) != 0;
}

static int look_in_libc(struct dl_phdr_info *info, size_t size, void *with) {
    (void)size;
    struct search *search = with;
    struct ct_object object;
    if (!read_object(info, &object)) return 0;
    if (strncmp(object.name, "libc.", 5) != 0 && strncmp(object.name, "libdl.", 6) != 0) return 0;
    search->found = ct_find_symbol(&object, search->symbol);
    return search->found != NULL;
}

void *ct_find_in_libc(const char *symbol) {
    struct search search = {.symbol = symbol};
    ct_for_each_object(look_in_libc, &search);
    return search.found;
}

static int look_behind(struct dl_phdr_info *info, size_t size, void *with) {
    (void)size;
    struct search *search = with;
    struct ct_object object;
    bool readable = read_object(info, &object);
    if (search->behind) {
        if (contains(&object, search->behind)) search->behind = 0;
        return 0;
    }
    search->found = readable ? ct_find_symbol(&object, search->symbol) : NULL;
    return search->found != NULL;
}

void *ct_find_next_symbol(const void *caller, const char *symbol) {
    struct search search = {.symbol = symbol, .behind = (uintptr_t)caller};
    ct_for_each_object(look_behind, &search);
    return search.found;
}
