/* awake.c - wakes the module's parts at its first use. */
#include "server/awake.h"

#include <assert.h>

enum { MOST_PARTS = 12 };
static void (*parts[MOST_PARTS])(void);
static void (*followers[MOST_PARTS])(void);
static int part_count, follower_count;
static bool is_started, is_wanted, is_follow_wanted;

bool is_awake, is_following;

void awake_add(void (*wake)(void)) {
    assert(part_count < MOST_PARTS);
    parts[part_count++] = wake;
}

void awake_add_follower(void (*follow)(void)) {
    assert(follower_count < MOST_PARTS);
    followers[follower_count++] = follow;
}

void awake_follow_all(void) {
    is_follow_wanted = true;
    if (!is_awake) return;
    is_following = true;
    for (int i = 0; i < follower_count; i++) followers[i]();
}

void awake_all(void) {
    is_wanted = true;
    if (!is_started) return;
    is_awake = true; /* parts run commands, which ask again */
    if (is_follow_wanted) awake_follow();
    for (int i = 0; i < part_count; i++) parts[i]();
}

void awake_start(void) {
    is_started = true;
    if (is_wanted) awake_all();
}
