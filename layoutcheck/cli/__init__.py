"""The command line. Exit codes: 0 clean, 1 findings, 2 bad input, 70 an error in layoutcheck itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TextIO

EXIT_CLEAN, EXIT_FINDINGS, EXIT_INPUT, EXIT_INTERNAL = 0, 1, 2, 70
EXIT_INTERRUPT, EXIT_PIPE = 130, 141  # what a shell reports for the signals


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with ``arguments`` (default: those of the process) and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        _never_fail_on_encoding(stream)
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _give_up_stdout()
        return EXIT_PIPE
    except OSError as error:
        _give_up_stdout()
        return _fail(f"cannot write the output: {error.strerror or error}")


def _give_up_stdout() -> None:
    """Point stdout elsewhere, or the interpreter complains again when it flushes at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _never_fail_on_encoding(stream: TextIO) -> None:
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def _run(arguments: Sequence[str] | None) -> int:
    import click

    from layoutcheck.cli.app import app
    from layoutcheck.errors import InputError

    try:
        # Not app.main(): that turns a closed pipe into exit code 1, which means findings here.
        words = sys.argv[1:] if arguments is None else list(arguments)
        with app.make_context("layoutcheck", words) as context:
            return int(app.invoke(context) or EXIT_CLEAN)
    except click.exceptions.Exit as done:
        return done.exit_code
    except getattr(click.exceptions, "NoArgsIsHelpError", ()) as error:
        print(error.format_message(), file=sys.stderr)
        return EXIT_INPUT
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "layoutcheck"
        return _fail(f"{error.format_message()} (see {command} --help)")
    except click.ClickException as error:
        return _fail(error.format_message())
    except InputError as error:
        return _fail(str(error))
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPT
    except OSError as error:
        # What reads or writes files turns its errors into InputError; this is stdout.
        if isinstance(error, BrokenPipeError) or not error.filename:
            raise
        return _fail(f"{error.filename}: {error.strerror or error}")
    except Exception as error:
        if os.environ.get("LAYOUTCHECK_DEBUG"):
            raise
        text = f"internal error: {type(error).__name__}: {error}"
        _fail(f"{text} (this is a bug; LAYOUTCHECK_DEBUG=1 shows the traceback)")
        return EXIT_INTERNAL


def _fail(message: str) -> int:
    """Print one line on stderr and return the exit code for bad input."""
    _say("error", message)
    return EXIT_INPUT


def warn(message: str) -> None:
    """Print one line on stderr about something that is odd and does not stop the command."""
    _say("warning", message)


def _say(kind: str, message: str) -> None:
    from layoutcheck.reports.wording import printable

    print(f"{kind}: " + printable(" ".join(message.split())), file=sys.stderr)
