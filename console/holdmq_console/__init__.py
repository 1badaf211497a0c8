"""The HTTP API and the web console of HoldMQ: `holdmq console`.

    browser, program ──HTTP──► app ──► api/ (JSON)  ──► the same functions ──► AsyncHoldMQ ──► server
                                  └──► pages (HTML) ──┘                  └──► holdmq_bridge.auth.Store

It uses the public Python client and the store of users of `holdmq_bridge.auth`, and nothing else of the bridge.

Invariants
 1. It holds no state that cannot be lost. Sessions are in signed cookies; tokens, the key that signs and the audit
    stream are in the server.
 2. Every change is in the audit stream before it is made.
 3. Whatever cannot be read or understood refuses.
 4. Every request costs the server a bounded number of bounded steps, whatever is stored there.
"""
