"""The columns of history as Apache Arrow's: what pyarrow makes of them is what the client reads itself."""

import pyarrow as pa

from holdmq import HoldMQ
from holdmq.history_replies import COLUMNS
from tests.support import Server, embedded_kinds

server_kinds = embedded_kinds


def test_columns_become_a_record_batch_that_shares_their_memory(server: Server) -> None:
    with HoldMQ.from_url(server.url) as hold:
        hold.history.create("s", "s/#")
        store = hold.history.store("s")
        for number in range(20):
            store.append(f"s/{number}", b"\xff" * number, publisher="é")
        columns = store.range(0, 1, 100)
        empty = store.range(0, 21, 100).arrow()
    batch = columns.arrow()
    batch.validate(full=True)
    assert batch.schema.names == list(COLUMNS)
    assert batch.schema.field("topic").type == pa.string()
    assert batch.schema.field("payload").type == pa.binary()
    assert batch.schema.field("sequence").type == pa.int64()
    for name in COLUMNS:
        assert batch.column(name).to_pylist() == columns[name]
    data = batch.column("payload").buffers()[2]
    assert data.address == pa.py_buffer(columns.buffers("payload")[1]).address
    assert empty.num_rows == 0
