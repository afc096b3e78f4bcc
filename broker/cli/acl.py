"""``pystore acl``: who may do what, in a plain list, in the users of a store, at a broker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker.cli.clients import DryRun, no_settings
from broker.cli.signing import CredentialsFile, TrustFile
from pystore.cli.verbs import Session, usage

if TYPE_CHECKING:
    from broker.access.needs import AccessAction, Verdict
    from broker.access.plain import PlainRules
    from broker.access.policies import PolicyRules, Resource
    from broker.cli.acl_rules import Right, Rules

__all__ = ["add", "check", "list_", "remove"]

_User = Annotated[str, typer.Argument(metavar="USER", help="Name of the user, its access key.")]
_Rules = Annotated[
    Path | None,
    typer.Option(
        "--rules", metavar="PATH", help="plain_acl.yml or its folder, or a store with users."
    ),
]
_Broker = Annotated[
    str | None,
    typer.Option("--broker", metavar="HOST:PORT", help="Ask this broker instead of reading files."),
]


def _open_rules(
    s: Session, rules: Path | None, broker: str | None, credentials: Path | None, trust: Path | None
) -> Rules:
    """Opens the rules that are meant. Raises: StoreError, OSError."""
    from broker.cli.acl_rules import rules_at, rules_of_broker

    no_settings(s)
    if (rules is None) == (broker is None):
        raise usage("say where the rules are, once", "use --rules PATH or --broker HOST:PORT")
    if broker is not None:
        return rules_of_broker(broker, credentials, trust)
    if credentials is not None or trust is not None:
        raise usage("files are read without credentials", "leave --credentials and --trust out")
    assert rules is not None
    return rules_at(rules, lambda store: replace(s, path=store).check_free())


def _resource(text: str) -> Resource:
    """Reads a resource. Raises: BadArgument."""
    from broker.access.policies import parse_resource

    found = parse_resource(text)
    if found is None:
        step = "write Topic:orders, Topic:begin*, Group:app, Cluster:name or *"
        raise usage(f"'{text}' is not a resource", step)
    return found


def _action(text: str) -> AccessAction:
    """Reads an action. Raises: BadArgument."""
    from broker.access.needs import AccessAction

    for action in AccessAction:
        if action.lower() == text.strip().lower() and action is not AccessAction.ANY:
            return action
    raise usage(
        f"'{text}' is not an action", "use Pub, Sub, Create, Update, Delete, Get, List or All"
    )


def _rights(allow: list[str] | None, deny: list[str] | None) -> tuple[Right, ...]:
    """Reads rights. Raises: BadArgument."""
    from broker.access.needs import AccessAction
    from broker.cli.acl_rules import Right

    made = []
    for text in allow or ():
        name, equals, actions = text.rpartition("=")
        if not equals:
            raise usage(
                f"--allow '{text}' is not RESOURCE=ACTIONS",
                "for example: --allow Topic:orders=Pub,Sub",
            )
        made.append(Right(_resource(name), tuple(map(_action, actions.split(",")))))
    for text in deny or ():
        name, equals, actions = text.rpartition("=")
        found = tuple(map(_action, actions.split(","))) if equals else (AccessAction.ALL,)
        made.append(Right(_resource(name if equals else text), found, allow=False))
    return tuple(made)


# ---- list ----


def list_(
    s: Session,
    rules: _Rules = None,
    broker: _Broker = None,
    user: Annotated[str | None, typer.Option(help="Only this user.")] = None,
    credentials: CredentialsFile = None,
    trust: TrustFile = None,
) -> int | None:
    """List users and their rights; secrets are never shown.

    They are those of a plain list, of the users that a store keeps, or of a running broker: say
    where by --rules or by --broker. Exit code 1: there are none. JSON: one object with the
    members rules, users and rights. See docs/access.md.

    \b
    Examples:
      pystore acl list --rules conf/plain_acl.yml
      pystore acl list --rules STORE --user shop --json
      pystore acl list --broker 127.0.0.1:10911 --credentials admin.yml
    """
    place = _open_rules(s, rules, broker, credentials, trust)
    found = place.now()
    users, rights, white = _listed(found)
    s.out.facts("rules", {"kind": _kind(found), "where": place.where, "global white list": white})
    chosen = [row for row in users if user in (None, row[0])]
    s.out.table("users", ("user", "administrator", "enabled", "white list"), chosen)
    s.out.table(
        "rights",
        ("user", "resource", "actions", "decision", "from", "policy"),
        [row for row in rights if user in (None, row[0])],
    )
    return 0 if chosen else 1


def _kind(rules: PlainRules | PolicyRules) -> str:
    from broker.access.plain import PlainRules

    return "plain list" if isinstance(rules, PlainRules) else "users and policies"


def _listed(
    rules: PlainRules | PolicyRules,
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]], list[str]]:
    """Returns users, rights and the global white list."""
    from broker.access.plain import DENY, PlainRules, right_text

    users: list[tuple[Any, ...]] = []
    rights: list[tuple[Any, ...]] = []
    if not isinstance(rules, PlainRules):
        for name, user in sorted(rules.users.items()):
            users.append((name, user.superuser, user.enabled, None))
            acl = rules.acls.get(name)
            for kind in ("Custom", "Default") if acl is not None else ():
                for entry in acl.policy(kind):  # type: ignore[union-attr]
                    rights.append((
                        name, str(entry.resource), [str(a) for a in entry.actions],
                        "Allow" if entry.allow else "Deny", [p.text for p in entry.sources], kind,
                    ))  # fmt: skip
        return users, rights, []
    for key, account in rules.accounts.items():
        users.append((key, account.admin, True, account.white.text or None))
        given = [(f"Topic:{name}", bits) for name, bits in account.topics.items()]
        given += [(f"Group:{name}", bits) for name, bits in account.groups.items()]
        given += [("Topic:*", account.topic_default), ("Group:*", account.group_default)]
        for resource, bits in given:
            actions = [] if bits & DENY else [w.capitalize() for w in right_text(bits).split("|")]
            decision = "Deny" if bits & DENY else "Allow"
            rights.append((key, resource, actions or ["All"], decision, [], None))
    return users, rights, [pattern.text for pattern in rules.white]


# ---- changes ----


_Secret = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File with accessKey and secretKey of USER, for its --credentials; made with a"
        " random secret if it does not exist. Needed for a new user.",
    ),
]


def add(
    s: Session,
    user: _User,
    rules: _Rules = None,
    broker: _Broker = None,
    secret: _Secret = None,
    admin: Annotated[
        bool | None, typer.Option("--admin/--no-admin", help="Make it an administrator, or not.")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="RESOURCE=ACTIONS", help="A right: Topic:orders=Pub,Sub. Repeatable."),
    ] = None,
    deny: Annotated[
        list[str] | None,
        typer.Option(metavar="RESOURCE[=ACTIONS]", help="What it may not do. Repeatable."),
    ] = None,
    from_: Annotated[
        list[str] | None,
        typer.Option(
            "--from", metavar="ADDRESS", help="The rights hold from this address or network only."
        ),
    ] = None,
    white: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Plain list: a source that needs neither secret nor right."
        ),
    ] = None,
    credentials: CredentialsFile = None,
    trust: TrustFile = None,
    dry_run: DryRun = False,
) -> int | None:
    """Make a user, or give one rights, a new secret, the rank of an administrator.

    A right takes the place of the one on the same resource. A plain list is written again, without
    its comments. A store that a broker holds is changed through the broker.

    Rights are written Topic:orders=Pub,Sub, Group:app=Sub, Topic:*=Sub, Topic:begin*=Pub or
    Cluster:name=Get. A plain list knows Pub and Sub on topics and groups, by name or, with *,
    as the default. The exit code is 4 while a broker has the store open.

    \b
    Examples:
      pystore acl add shop --rules STORE --secret shop.yml --allow Topic:orders=Pub
      pystore acl add shop --rules plain_acl.yml --allow 'Topic:*=Sub' --deny Topic:payments
      pystore acl add shop --broker 127.0.0.1:10911 --credentials admin.yml --allow Group:app=Sub
    """
    from broker.cli.acl_rules import UserChange

    given = _rights(allow, deny)
    if from_ and not given:
        raise usage("--from limits rights, and none is given", "add --allow or --deny")
    place = _open_rules(s, rules, broker, credentials, trust)
    known = _is_known(place, user)
    if not known and secret is None:
        raise usage(
            f"{user} is new and needs a secret",
            "name a file with --secret: it is made if it does not exist",
        )
    made = _secret(secret, user, dry_run)
    change = UserChange(user, made, admin, white, given, tuple(from_ or ()))
    plan = {
        "user": user, "new": not known, "where": place.where, "administrator": admin,
        "rights": [f"{'Allow' if r.allow else 'Deny'} {r.resource}={'|'.join(r.actions)}"
                   for r in given],
        "from": list(from_ or ()), "white list": white,
    }  # fmt: skip
    place.add(change, dry_run)
    s.out.facts("plan" if dry_run else "added", plan)
    return 0


def _is_known(place: Rules, user: str) -> bool:
    from broker.access.policies import PolicyRules

    found = place.now()
    return user in (found.users if isinstance(found, PolicyRules) else found.accounts)


def _secret(file: Path | None, user: str, dry: bool) -> str | None:
    """Reads the secret of the file, which is made if need be. Raises: BadArgument, OSError."""
    from broker.cli.secure import make_credentials, random_secret
    from broker.cli.signing import credentials_of

    if file is None:
        return None
    if not file.exists():
        if dry:
            return random_secret()
        make_credentials(file, user)
    found = credentials_of(file)
    assert found is not None  # it raises for a file that has none
    if found.access_key != user:
        raise usage(f"--secret {file} is that of {found.access_key}, not of {user}", "name another")
    return found.secret_key


def remove(
    s: Session,
    user: _User,
    rules: _Rules = None,
    broker: _Broker = None,
    resource: Annotated[
        str | None,
        typer.Option(metavar="RESOURCE", help="Only its right on this, as `acl list` shows it."),
    ] = None,
    credentials: CredentialsFile = None,
    trust: TrustFile = None,
    dry_run: DryRun = False,
) -> int | None:
    """Remove a user with its rights, or one of its rights.

    A right that is gone no longer decides: a default or a prefix may still allow the same. See
    with `pystore acl check`.

    Exit code 1: there is no such user or right.

    \b
    Examples:
      pystore acl remove shop --rules STORE --dry-run
      pystore acl remove shop --rules plain_acl.yml --resource Topic:orders
    """
    place = _open_rules(s, rules, broker, credentials, trust)
    concerned = _resource(resource) if resource is not None else None
    place.remove(user, concerned, dry_run)
    plan = {"user": user, "resource": resource, "where": place.where}
    s.out.facts("plan" if dry_run else "removed", plan)
    return 0


# ---- check ----


def check(
    s: Session,
    user: _User,
    action: Annotated[str, typer.Argument(metavar="ACTION", help="Pub, Sub, Create, Get, ..")],
    resource: Annotated[
        str, typer.Argument(metavar="RESOURCE", help="Topic:NAME, Group:NAME or Cluster:NAME.")
    ],
    from_: Annotated[
        str, typer.Option("--from", metavar="ADDRESS", help="Where the user's client is.")
    ],
    rules: _Rules = None,
    broker: _Broker = None,
    credentials: CredentialsFile = None,
    trust: TrustFile = None,
) -> int | None:
    """Say whether a user whose secret is right may do something, and which rule decides.

    Exit code 1: it may not. A consumer needs Sub on its topic and on its group: check both.

    Shows file, line and right of a plain list, or the policy's entry. Users and policies are
    taken to be switched on. JSON: one object, check, with allowed and rule.

    \b
    Examples:
      pystore acl check shop Pub Topic:orders --from 10.0.0.7 --rules STORE
      pystore acl check app Sub Group:app --from 10.0.0.7 --rules plain_acl.yml --json
    """
    from broker.access.addresses import address_of

    if address_of(from_) is None:
        raise usage(f"--from '{from_}' is not an address", "for example: --from 10.0.0.7")
    wanted, asked = _resource(resource), _action(action)
    if not wanted.is_name:
        raise usage(f"{resource} is not one resource", "name one, such as Topic:orders")
    found = _open_rules(s, rules, broker, credentials, trust).now()
    verdict = _verdict(found, user, wanted, asked, str(address_of(from_)))
    s.out.facts(
        "check",
        {"allowed": verdict.allowed, "rule": verdict.rule, "user": user, "action": str(asked),
         "resource": str(wanted), "from": from_},
    )  # fmt: skip
    return 0 if verdict.allowed else 1


def _verdict(
    rules: PlainRules | PolicyRules, user: str, resource: Resource, action: AccessAction, host: str
) -> Verdict:
    from broker.access.needs import (
        AccessAction,
        AccessRequest,
        Need,
        ResourceKind,
        Verdict,
        topic_need,
    )
    from broker.access.policies import PolicyRules

    topic = resource.kind is ResourceKind.TOPIC
    need = (
        topic_need(resource.name, action)
        if topic
        else Need(resource.kind, resource.name, (action,))
    )
    if isinstance(rules, PolicyRules):
        return rules.authorized(user, AccessRequest(0, (need,)), host)
    found = rules.known(user, host)
    if isinstance(found, Verdict):
        return found
    used = action in (AccessAction.PUB, AccessAction.SUB)
    # What is not sending or receiving is for administrators or for everybody with a secret.
    admin = action in (
        AccessAction.ALL,
        AccessAction.CREATE,
        AccessAction.UPDATE,
        AccessAction.DELETE,
    )
    return rules.authorize(found, AccessRequest(0, (need,) if used else (), admin))
