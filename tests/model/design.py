"""The rules of the design (docs/cluster-design.md) that the model can leave out, each with what it is for."""

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Design:
    """Each rule is on in the design; a test switches one off and expects the model to find what breaks.

    Attributes:
        targets_check_homes: a node of sessions stores nothing by the answer of a node that it did not export to,
            or that has lost its slots.
        routes_are_sets: a route is a member of a set; without it, a number that ADD raises and DEL lowers.
        unconfirmed_routes_are_added: a second session of a slot relies on a route only if it is confirmed.
        notes_keep_numbers: a slot notes each number of a publisher; without it, only the largest.
        route_before_suback: a SUBACK follows the routes; without it, it precedes them.
        refused_slots_stay_refused: a slot that was refused stays refused on its connection until ROUTE.RESUME.
        slots_change_nodes_when_idle: a slot's messages go to another node when all before them were answered.
        sets_are_pinned: a publisher uses a newer set of slots only after what it sent by an older one was checked.
        removal_compares_tokens: a route is removed only if it was not renewed since it was looked at.
        targets_fence_publishers: a slot refuses epochs of a publisher that are older than one it has seen.
        numbers_have_epochs: the numbers of QoS 2 begin with the config epoch of the node that gives them.
        everyone_is_asked: a subscription asks the nodes that its own node knows; without it, those of the bridge alone.
        superseded_homes_are_asked: a node that lost its slots is asked for as long as it answers.
    """

    targets_check_homes: bool = True
    routes_are_sets: bool = True
    unconfirmed_routes_are_added: bool = True
    notes_keep_numbers: bool = True
    route_before_suback: bool = True
    refused_slots_stay_refused: bool = True
    slots_change_nodes_when_idle: bool = True
    sets_are_pinned: bool = True
    removal_compares_tokens: bool = True
    targets_fence_publishers: bool = True
    numbers_have_epochs: bool = True
    everyone_is_asked: bool = True
    superseded_homes_are_asked: bool = True


RULES = [field.name for field in fields(Design)]
