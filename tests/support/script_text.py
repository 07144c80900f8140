"""The text of a script: comments, and commands, each with the output that is expected.

    # A comment tells the story.

    command
    ----
    expected output, line by line, up to the next empty line

A script is run command by command. The text that comes out is the same script with the output that there was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

DASHES = "----"


def rerun(text: str, perform: Callable[[str], list[str]]) -> str:
    """Perform every command of a script, and return the script with what happened."""
    told = []
    for block in _blocks(text):
        if DASHES in block:
            command = block[: block.index(DASHES)]
            # A comment may stand right above its command.
            lines = [line for line in command if not line.startswith("#")]
            if len(lines) != 1:
                raise ValueError(f"one command must stand above the dashes, and not {lines}")
            told.append([*command, DASHES, *perform(lines[0])])
        elif all(line.startswith("#") for line in block):
            told.append(block)
        else:
            raise ValueError(f"a command needs a line of dashes below it: {block}")
    return "\n\n".join("\n".join(block) for block in told) + "\n"


def _blocks(text: str) -> Iterator[list[str]]:
    """Lines that no empty line parts."""
    for block in text.strip().split("\n\n"):
        yield [line.rstrip() for line in block.strip("\n").split("\n")]
