"""May this client do that, and which rule decides? For people who ask: the command line and the console."""

from dataclasses import dataclass

from holdmq_bridge.auth.records import Policy, User
from holdmq_bridge.auth.rules import CompiledRules, Decision, compile_rules, without_rules


@dataclass(frozen=True, slots=True)
class Explanation:
    """A verdict in words.

    Attributes:
        allowed: whether the client may.
        because: the rule that decides, or another reason.
    """

    allowed: bool
    because: str


def explain(policy: Policy, user: User | None, client_id: str, action: str, topic: str) -> Explanation:
    """Decides as a bridge does.

    Args:
        policy: the stored roles and bans.
        user: who the client is; None: an anonymous client.
        client_id: its client id.
        action: `publish` or `subscribe`.
        topic: the topic, or the filter.

    Raises:
        InvalidTopicError: the topic is invalid.
        RecordError: a role of the user is broken or missing.
    """
    refused = _refused(policy, user, client_id)
    if refused:
        return Explanation(False, refused)
    rules = _rules_of(policy, user, client_id)
    decide = rules.decide_publish if action == "publish" else rules.decide_subscribe
    decision = decide(topic.encode("utf-8", "surrogateescape"))
    return Explanation(decision.allowed, _explained(policy, user, decision))


def _refused(policy: Policy, user: User | None, client_id: str) -> str:
    """Why the client could not even connect."""
    if policy.blocks(client_id.encode()):
        return "the client id is blocked"
    if user is not None and not user.enabled:
        return "the user is disabled"
    if user is not None and not user.may_be_client(client_id.encode()):
        return f"the user may not use this client id, only {' '.join(user.clients)}"
    return ""


def _rules_of(policy: Policy, user: User | None, client_id: str) -> CompiledRules:
    if policy.is_empty:
        return without_rules()
    if user is not None and user.superuser:
        return CompiledRules((), default=True)
    lists = policy.rule_lists(user, anonymous=user is None)
    return compile_rules(lists, client_id.encode(), None if user is None else user.name, default=False)


def _explained(policy: Policy, user: User | None, decision: Decision) -> str:
    if decision.entry is not None:
        entry = decision.entry
        plain = entry.topic_filter.decode("utf-8", "backslashreplace")
        became = "" if plain == entry.rule.topic_filter else f" (here: {plain})"
        return f"rule {entry.number} of {entry.source}: {entry.rule}{became}"
    if policy.is_empty:
        return "there are neither users nor rules"
    return "the user is a superuser" if user is not None and user.superuser else "no rule applies"
