"""Who may connect, publish and subscribe: users, roles and rules, stored in the server.

For the bridge:

    AuthSettings          its settings; `is_loopback`: whether an address is local
    Authenticator         authenticate, rules_for, review; reports changes
    Verdict, Reason       what it answers, with the codes of both protocol versions
    CompiledRules         what one client may do
    certificate_identity  the name in a client certificate

`records` says how everything is stored in the server.  The command line (`holdmq_bridge.admin`) works with `store` and
`transfer`.

Uses `base` alone.
"""

from holdmq_bridge.auth.authenticator import Authenticator
from holdmq_bridge.auth.certificates import CertificateError, CertificateName, certificate_identity
from holdmq_bridge.auth.rules import CompiledRules
from holdmq_bridge.auth.settings import AuthSettings, is_loopback
from holdmq_bridge.auth.verdict import Change, Identity, Kind, Reason, Verdict

__all__ = [
    "AuthSettings",
    "Authenticator",
    "CertificateError",
    "CertificateName",
    "Change",
    "CompiledRules",
    "Identity",
    "Kind",
    "Reason",
    "Verdict",
    "certificate_identity",
    "is_loopback",
]
