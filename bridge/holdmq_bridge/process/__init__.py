"""One bridge process: its settings, event loop, engine, counters, clock and timers, in one `Process`.

Uses `base`, and `auth` for the settings of logins.
"""
