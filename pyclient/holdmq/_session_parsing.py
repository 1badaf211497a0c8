"""Parses the replies of the session commands that `holdmq._session_commands` builds.

A reply with an undocumented form raises `UnexpectedReplyError`.
"""

from holdmq import _wire as wire
from holdmq.errors import ArgumentError
from holdmq.replies import (
    AckResult,
    AddResult,
    Entry,
    EntryState,
    ImportResult,
    OpenResult,
    Page,
    ReplayResult,
    SessionInfo,
    SessionRow,
    SessionsPage,
    SubscriptionOptions,
    SubscriptionsPage,
)


def flags(reply: object) -> tuple[bool, ...]:
    return tuple(wire.flag(item) for item in wire.array(reply))


def added(reply: object) -> AddResult:
    packet_ids, serial, trimmed, expired = wire.array(reply, 4)
    return AddResult(
        tuple(wire.integer(packet_id) for packet_id in wire.array(packet_ids)),
        wire.integer(serial),
        wire.integer(trimmed),
        wire.integer(expired),
    )


def imported(reply: object) -> ImportResult:
    stored, last_serial, last_packet_id, changed, trimmed, new = wire.array(reply, 6)
    pairs = [wire.array(pair, 2) for pair in wire.array(changed)]
    return ImportResult(
        wire.integer(stored),
        wire.integer(last_serial),
        wire.integer(last_packet_id),
        tuple((wire.integer(old), wire.integer(given)) for old, given in pairs),
        wire.integer(trimmed),
        wire.flag(new),
    )


def page(reply: object) -> Page:
    entries, more, expired = wire.array(reply, 3)
    return Page(tuple(_entry(entry) for entry in wire.array(entries)), wire.flag(more), wire.integer(expired))


def acked(reply: object) -> AckResult:
    removed, following = wire.array(reply, 2)
    return AckResult(wire.integer(removed), page(following))


def replayed(reply: object) -> ReplayResult:
    delivered, behind, live, missed, stores = wire.array(reply, 5)
    left = wire.integer(behind)
    return ReplayResult(
        delivered=wire.integer(delivered),
        behind=left != 0,
        full=left == 2,
        live=wire.integer(live),
        missed=wire.integer(missed),
        stores=wire.names(stores),
    )


def _entry(reply: object) -> Entry:
    serial, packet_id, state, value = wire.array(reply, 4)
    try:
        return Entry(wire.integer(serial), wire.integer(packet_id), EntryState(wire.integer(state)), wire.string(value))
    except ValueError as error:
        raise wire.wrong(state, "state 0, 1 or 2") from error


def opened(reply: object) -> OpenResult:
    epoch, present = wire.array(reply, 2)
    return OpenResult(wire.integer(epoch), wire.flag(present))


def info(reply: object) -> SessionInfo:
    fields = wire.mapping(reply)
    try:
        ttl_ms = wire.integer(fields["ttl_ms"])
        return SessionInfo(
            exists=wire.flag(fields["exists"]),
            owner=wire.decoded(fields["owner"] or b""),
            identity=wire.decoded(fields["identity"] or b""),
            epoch=wire.integer(fields["epoch"]),
            connected=wire.flag(fields["connected"]),
            expiry=wire.integer(fields["expiry"]),
            messages=wire.integer(fields["messages"]),
            bytes=wire.integer(fields["bytes"]),
            dropped=wire.integer(fields["dropped"]),
            overflow=wire.decoded(fields["overflow"]),
            first_serial=wire.integer(fields["first_serial"]),
            last_serial=wire.integer(fields["last_serial"]),
            last_packet_id=wire.integer(fields["last_packet_id"]),
            subscriptions=wire.integer(fields["subscriptions"]),
            ttl_ms=None if ttl_ms == -1 else ttl_ms,
        )
    except KeyError as error:
        raise wire.wrong(reply, f"a field {error}") from error


def subscriptions(reply: object) -> dict[str, SubscriptionOptions]:
    return {name: _options(text) for name, text in wire.mapping(reply).items()}


def subscriptions_page(reply: object) -> SubscriptionsPage:
    cursor, filters = wire.array(reply, 2)
    at = wire.decoded(cursor)
    return SubscriptionsPage(None if at == "0" else at, subscriptions(filters))


def _options(reply: object) -> SubscriptionOptions:
    try:
        return SubscriptionOptions.from_text(str(reply) if isinstance(reply, int) else wire.decoded(reply))
    except ArgumentError as error:
        raise wire.wrong(reply, "subscription options") from error


def sessions(reply: object) -> SessionsPage:
    cursor, rows = wire.array(reply, 2)
    at = wire.decoded(cursor)
    return SessionsPage(None if at == "0" else at, tuple(_session(row) for row in wire.array(rows)))


def _session(reply: object) -> SessionRow:
    client_id, connected, owner, messages, key, identity = wire.array(reply, 6)
    return SessionRow(
        wire.decoded(client_id),
        wire.flag(connected),
        wire.decoded(owner or b""),
        wire.integer(messages),
        wire.decoded(key),
        wire.decoded(identity or b""),
    )
