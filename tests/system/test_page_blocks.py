"""Every block of every page is run by a test, or nothing can run it."""

from tests.support.pages import NOT_RUN, REPOSITORY, RUN_BY, Block, all_blocks, exemption, pages, parsed

NOT_RUNNABLE = ("text",)  # pictures and grammars
EVERY = [block for page in pages() for block in all_blocks(page)]


def nobody_runs(block: Block) -> bool:
    return block.kind not in NOT_RUNNABLE and (block.page, block.kind) not in RUN_BY and exemption(block) is None


def test_every_block_of_every_page_is_run() -> None:
    assert len(EVERY) > 70
    assert [str(block) for block in EVERY if nobody_runs(block)] == []


def test_commands_are_not_called_pictures() -> None:
    words = (
        "redis-cli ",
        "holdmq ",
        "holdmq-bridge ",
        "mosquitto_",
        "make ",
        "import ",
        "from ",
        "SENTINEL ",
        "CONFIG ",
    )
    pictures = [block for block in EVERY if block.kind in NOT_RUNNABLE]
    assert [str(block) for block in pictures if any(line.startswith(words) for line in block.text.splitlines())] == []


def test_the_tables_name_what_is_there() -> None:
    there = {(block.page, block.kind) for block in EVERY}
    assert set(RUN_BY) - there == set()
    for page, begin in NOT_RUN:
        assert sum(block.page == page and block.text.startswith(begin) for block in EVERY) == 1, begin


def test_each_runner_asks_for_its_blocks() -> None:
    for (page, kind), runner in RUN_BY.items():
        text = (REPOSITORY / runner).read_text()
        assert f'"{page}"' in text or "python_page" in text, f"{runner} does not name {page}"
        assert "blocks(" in text or "python_page" in text, f"{runner} does not ask for the blocks of {page} ({kind})"


def test_a_block_without_a_label_is_found_wherever_it_is() -> None:
    text = (
        "a\n\n    redis-cli PING\n\n- b\n\n    of the list\n\nc\n    of the paragraph\n\n```\nls\n```\n\n~~~\nls\n~~~\n"
    )
    found = parsed("docs/new.md", text)
    assert [(block.line, nobody_runs(block)) for block in found] == [(3, True), (12, True), (16, True)]
