"""What clients do, in which order, for each rule of the design that a test leaves out."""

from tests.model.world import Weather

Script = tuple[tuple[str, ...], ...]

ONCE = Weather(qos=(1,))
TWICE = Weather(qos=(2,))

# Both publishers' nodes have all routes, and the bridges their answers.
_WARM: Script = (("publish", "p1", "a"), ("publish", "p3", "a"), ("settle",))
_BOTH_PUBLISH: Script = (("publish", "p1", "a"), ("publish", "p3", "a"))

SCRIPTS: dict[str, tuple[Weather, Script]] = {
    "routes_are_sets": (
        ONCE,
        (
            *_WARM,
            *(("subscribe", "s0", "a"), ("subscribe", "t0", "a"), ("settle",), ("unsubscribe", "s0", "a")),
            *(("break_one", "A"), ("break_one", "A"), ("break_one", "A"), ("settle",)),
            *(("subscribe", "s2", "b"), ("settle",), *_BOTH_PUBLISH),
        ),
    ),
    "unconfirmed_routes_are_added": (
        ONCE,
        (*_WARM, ("subscribe", "s0", "a"), ("subscribe", "t0", "a"), *_BOTH_PUBLISH),
    ),
    "notes_keep_numbers": (
        TWICE,
        (
            *(("subscribe", "s0", "b"), ("settle",), ("publish", "p1", "a"), ("publish", "p1", "b"), ("settle",)),
            *(("subscribe", "t0", "a"), ("settle",), ("publish", "p1", "a"), ("publish", "p1", "b")),
        ),
    ),
    "route_before_suback": (ONCE, (*_WARM, ("subscribe", "s0", "a"), *_BOTH_PUBLISH)),
    "sets_are_pinned": (
        ONCE,
        (*_WARM, ("subscribe", "s0", "a"), *(("publish", "p1", "a"),) * 3),
    ),
    "targets_check_homes": (
        ONCE,
        (
            *_WARM,
            *(("subscribe", "s2", "a"), ("settle",), *_BOTH_PUBLISH, ("settle",), ("supersede",)),
            *(("subscribe", "s4", "a"), *(("pause",),) * 5, ("publish", "p1", "a")),
        ),
    ),
    "removal_compares_tokens": (
        ONCE,
        (
            *(("subscribe", "s0", "a"), ("settle",), ("unsubscribe", "s0", "a"), ("settle",)),
            *(("remove", "A"), ("stall", "A"), ("subscribe", "t0", "a"), ("settle",), *_BOTH_PUBLISH),
        ),
    ),
}
