/* memory.c - grows arrays. */
#include "server/memory.h"

void *array_grow(void *array, size_t *room, size_t needed, size_t first, size_t size) {
    size_t larger = *room == 0 ? first : *room * 2;
    while (larger < needed) larger *= 2;
    *room = larger;
    return sv.Realloc(array, larger * size);
}
