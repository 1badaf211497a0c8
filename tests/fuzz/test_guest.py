"""An application gets the replies of a stock server, before the module has its first policy and after."""

from pathlib import Path

import pytest

from tests.fuzz import guest
from tests.module.channels_support import stock
from tests.support import Server, ServerKind

SEEDS = (1, 2, 3)
STEPS = 250


@pytest.mark.parametrize("seed", SEEDS)
def test_random_commands_of_an_application_get_the_replies_of_a_stock_server(
    server_kind: ServerKind, tmp_path: Path, seed: int
) -> None:
    ours = Server(server_kind, tmp_path / "ours", config=[*guest.CONFIG, *guest.ASLEEP])
    try:
        ours.start()
        with stock(server_kind, tmp_path / "stock", *guest.CONFIG) as theirs:
            guest.run(ours, theirs, seed, STEPS)
        ours.check()
        ours.check_indexes()
    finally:
        ours.close()
