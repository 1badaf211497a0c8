"""`holdmq-bridge auth role`, `rule` and `block`: lists of rules, and client ids that may not connect."""

import click

from holdmq_bridge.admin.common import Whose, change_store, output, pass_store
from holdmq_bridge.auth.records import BUILT_IN_ROLES
from holdmq_bridge.auth.rules import Rule
from holdmq_bridge.auth.store import Store, StoreError, Target

_WHOSE = Whose()


@click.group("role")
def role_group() -> None:
    """Roles are named lists of rules. `everybody` and `anonymous` always exist."""


@role_group.command("add")
@click.argument("name")
@change_store
def role_add(store: Store, name: str) -> None:
    """Add the role NAME without rules."""
    store.add_role(name)


@role_group.command("delete")
@click.argument("name")
@change_store
def role_delete(store: Store, name: str) -> None:
    """Remove the role NAME and its rules. Refused while a user has the role."""
    store.delete_role(name)


@role_group.command("list")
@pass_store
def role_list(store: Store) -> None:
    """List all roles."""
    policy = store.policy()
    names = sorted({*policy.roles, *policy.broken, *BUILT_IN_ROLES})
    output().rows(
        ("role", "rules"), ([name, policy.broken.get(name) or len(policy.roles.get(name, ()))] for name in names)
    )


@click.group("rule")
def rule_group() -> None:
    """Rules allow or deny topics. WHOSE is role:NAME, user:NAME, everybody or anonymous."""


@rule_group.command("add")
@click.argument("whose", type=_WHOSE)
@click.argument("verdict", type=click.Choice(["allow", "deny"]))
@click.argument("action", type=click.Choice(["publish", "subscribe", "all"]))
@click.argument("topic_filter")
@click.option("--at", type=click.IntRange(1), help="Position in the list. Without it, the rule becomes the last.")
@change_store
def rule_add(store: Store, whose: Target, *, verdict: str, action: str, topic_filter: str, at: int | None) -> None:
    """Add a rule. In the filter, %c stands for the client id, %u for the username, %% for a percent sign."""
    rule = Rule.of(verdict, action, topic_filter)

    def add(rules: tuple[Rule, ...]) -> list[Rule]:
        if rule in rules:
            raise StoreError(f"{whose} has this rule already, as number {rules.index(rule) + 1}")
        place = len(rules) if at is None else _place(at, len(rules) + 1, whose)
        return [*rules[:place], rule, *rules[place:]]

    store.change_rules(whose, add)


@rule_group.command("delete")
@click.argument("whose", type=_WHOSE)
@click.argument("rule", nargs=-1, required=True)
@change_store
def rule_delete(store: Store, whose: Target, rule: tuple[str, ...]) -> None:
    """Remove a rule, named by its number or by its text (allow publish a/b)."""

    def delete(rules: tuple[Rule, ...]) -> list[Rule]:
        place = _find(rules, rule, whose)
        return [*rules[:place], *rules[place + 1 :]]

    store.change_rules(whose, delete)


@rule_group.command("move")
@click.argument("whose", type=_WHOSE)
@click.argument("number", type=click.IntRange(1))
@click.argument("to", type=click.IntRange(1))
@change_store
def rule_move(store: Store, whose: Target, number: int, to: int) -> None:
    """Move the rule with this NUMBER to another position."""

    def move(rules: tuple[Rule, ...]) -> list[Rule]:
        moved = list(rules)
        one = moved.pop(_place(number, len(rules), whose))
        moved.insert(_place(to, len(rules), whose), one)
        return moved

    store.change_rules(whose, move)


@rule_group.command("list")
@click.argument("whose", type=_WHOSE, required=False)
@pass_store
def rule_list(store: Store, whose: Target | None) -> None:
    """List the rules of WHOSE, or of all roles, in the order in which they apply."""
    if whose is not None:
        lists = {str(whose): store.rules(whose)}
    else:
        lists = {str(Target("role", name)): rules for name, rules in sorted(store.policy().roles.items())}
    rows = ([name, number, str(rule)] for name, rules in lists.items() for number, rule in enumerate(rules, 1))
    output().rows(("whose", "number", "rule"), rows)


def _place(number: int, count: int, whose: Target) -> int:
    if number > count:
        raise StoreError(f"{whose} has no rule {number}; expected 1 to {count}")
    return number - 1


def _find(rules: tuple[Rule, ...], words: tuple[str, ...], whose: Target) -> int:
    if len(words) == 1 and words[0].isdecimal() and int(words[0]) > 0:
        return _place(int(words[0]), len(rules), whose)
    rule = Rule.parse(" ".join(words))
    if rule not in rules:
        raise StoreError(f"{whose} has no rule {str(rule)!r}")
    return rules.index(rule)


@click.group("block")
def block_group() -> None:
    """Blocked client ids may not connect, whoever uses them."""


@block_group.command("add")
@click.argument("pattern")
@click.option("--why", default="", help="Reason, which is shown in the list.")
@change_store
def block_add(store: Store, pattern: str, why: str) -> None:
    """Block the client ids that match PATTERN (a glob). Connected clients are disconnected."""
    store.block(pattern, why)


@block_group.command("delete")
@click.argument("pattern")
@change_store
def block_delete(store: Store, pattern: str) -> None:
    """Let blocked client ids connect again."""
    store.unblock(pattern)


@block_group.command("list")
@pass_store
def block_list(store: Store) -> None:
    """List the blocked client ids."""
    output().rows(("client", "why"), sorted(store.blocked().items()))
